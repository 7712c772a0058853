import os

from specbench import files


def test_a_pipe_is_written_and_not_replaced(tmp_path):
    """A file that replaced /dev/null or /dev/stdout would break every program of the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write(pipe, "text")
    assert os.read(reader, 9) == b"text" and pipe.is_fifo()
    os.close(reader)


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    files.write(tmp_path / "link", "text")
    assert (tmp_path / "file").read_text() == "text" and (tmp_path / "link").is_symlink()
    assert len(list(tmp_path.iterdir())) == 2
