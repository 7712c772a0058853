"""Pages of results with one section per processor."""

import json

from scripts.sections import environment, processor, write_section

HERE = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
flags\t\t: fpu sse2 avx2 avx512f fma

processor\t: 1
cpu family\t: 99
"""


def test_a_section_replaces_that_of_its_own_processor_and_keeps_the_others(tmp_path):
    page = tmp_path / "results/page.md"
    write_section(page, "one", ["first", "", "| a |"], ["# Title", "", "Old words."])
    write_section(page, "two", ["second"])
    write_section(page, "one", ["again", ""], ["# Title", "", "New words."])
    assert page.read_text() == "# Title\n\nNew words.\n\n## one\n\nagain\n\n## two\n\nsecond\n"


def test_headings_of_lower_levels_belong_to_a_section(tmp_path):
    page = tmp_path / "page.md"
    write_section(page, "one", ["first", "", "### Details", "", "more"], ["# Title"])
    write_section(page, "two", ["second"])
    assert page.read_text() == "# Title\n\n## one\n\nfirst\n\n### Details\n\nmore\n\n## two\n\nsecond\n"


def test_processors_of_one_name_differ_by_family_model_and_instruction_sets():
    assert processor(HERE) == "AMD EPYC, family 25, model 17, avx2 avx512f"
    assert processor(HERE.replace(" avx512f", "").replace(": 17", ": 1")) == "AMD EPYC, family 25, model 1, avx2"
    assert processor("processor\t: 0\nFeatures\t: fp asimd sve\nCPU part\t: 0xd40\n") == "ARM, part 0xd40, asimd sve"


def test_the_environment_has_facts_of_the_machine_only_on_a_timed_page():
    timed, plain = json.loads(environment(server="1.2").strip("`")), json.loads(environment(is_timed=False).strip("`"))
    assert list(timed) == ["cpu", "cores", "load_1min", "python", "packages", "git", "server"]
    assert list(plain) == ["python", "packages", "git"]
    recorded = {key: key for key in ("cpu", "cores", "threads", "load_1min", "python", "packages", "git", "gpu")}
    assert list(json.loads(environment(recorded).strip("`"))) == [key for key in recorded if key != "gpu"]
