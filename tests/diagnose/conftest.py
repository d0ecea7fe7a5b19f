import pytest

from kvpaper.diagnose import diagnose


@pytest.fixture
def diagnosed(tmp_path):
    """Diagnose texts as the files of one incident."""

    def run(*texts):
        paths = []
        for number, text in enumerate(texts):
            path = tmp_path / f"{number}.log"
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            paths.append(path)
        return diagnose(paths)

    return run
