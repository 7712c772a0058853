"""The closing summary of skipped tests, in a pytest of its own."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.skipif(True, reason="needs torchao: specbench[quantization]")
@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_quantized(kind): ...

@pytest.mark.parametrize("tried", ["bwrap: bwrap not found", "unshare: unshare failed: Operation not permitted"])
def test_sandboxed(tried):
    pytest.skip(f"no sandbox works here ({tried}): install bubblewrap (0.8 or newer)")

@pytest.mark.skip(reason="needs Debian's chromium and chromium-driver")
def test_in_a_browser(): ...

@pytest.mark.skip(reason="no static cache for an encoder-decoder model")
def test_another(): ...

def test_passes(): ...
"""
SUMMARY = [
    "*skipped because something is missing*",
    "2 tests need torchao: pip install 'specbench[[]quantization]'",
    "1 test needs Chromium: sudo apt-get install chromium chromium-driver",
    "1 test needs bubblewrap: sudo apt-get install bubblewrap",
    "1 test needs user namespaces: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    "1 skipped for other reasons: pytest -rs shows them",
]


@pytest.fixture
def project(pytester):
    pytester.makeconftest((Path(__file__).parent / "fixtures" / "skip_summary.py").read_text())
    return pytester


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_the_summary_names_what_is_missing_and_how_to_install_it(project, options):
    project.makepyfile(TESTS)
    run = project.runpytest_subprocess if options else project.runpytest_inprocess
    done = run("-p", "no:cacheprovider", *options)
    done.assert_outcomes(passed=1, skipped=6)
    done.stdout.fnmatch_lines(SUMMARY, consecutive=False)


def test_there_is_no_summary_when_nothing_is_missing(project):
    project.makepyfile("import pytest\n\n@pytest.mark.skip(reason='no static cache')\ndef test_it(): ...\n")
    done = project.runpytest_inprocess("-p", "no:cacheprovider")
    done.assert_outcomes(skipped=1)
    done.stdout.no_fnmatch_line("*something is missing*")
