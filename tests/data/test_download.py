"""Downloading, against a server on this machine: what comes is compared with its hash, or does not stay."""

import hashlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bsvi.data import download, fetch
from bsvi.data.download import Source, Unavailable, obtain
from bsvi.data.integrity import BadFile, file_hash, read_record, verify

GOOD = bytes(range(256)) * 400
DEAD = "http://127.0.0.1:9/"  # the discard port: nobody answers


class Server(ThreadingHTTPServer):
    """Answers by the first folder of the address: good, wrong, truncated, missing, page, busy-once, endless."""

    daemon_threads = True
    requests_seen: list[str]

    @property
    def at(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        kind = self.path.split("/")[1]
        self.server.requests_seen.append(kind)
        seen = self.server.requests_seen.count(kind)
        if kind == "missing":
            return self.send_error(404)
        if kind == "broken" or (kind == "busy-once" and seen == 1):
            return self.send_error(503)
        body = {
            "wrong": GOOD[:-1] + b"\x01",
            "page": b"\n<!DOCTYPE html><html><body>Please log in</body></html>",
        }.get(kind, GOOD)
        self.send_response(200)
        if kind != "endless":
            self.send_header("Content-Length", str(len(GOOD) if kind == "truncated" else len(body)))
        self.end_headers()
        if kind == "endless":
            for _ in range(10_000):
                try:
                    self.wfile.write(bytes(1 << 16))
                except OSError:
                    return None
        if kind == "truncated" or (kind == "cut-once" and seen == 1):
            body = body[: len(body) // 2]
        self.wfile.write(body)
        return None

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    server.requests_seen = []
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def source(*mirrors: str, algorithm: str = "md5", most: int = 1 << 20) -> Source:
    whole = f"blob {len(GOOD)}\0".encode() + GOOD
    digest = hashlib.sha1(whole).hexdigest() if algorithm == "git-blob" else hashlib.new(algorithm, GOOD).hexdigest()
    return Source("some.mat", tuple(mirrors), algorithm, digest, most)


def get(source: Source, folder: Path, **options: float) -> Path:
    return obtain("some-set", source, folder, progress=False, **{"wait": 0.01, **options})


@pytest.mark.parametrize("algorithm", ["md5", "git-blob"])
def test_a_good_file_arrives_once_and_its_hash_is_recorded(server: Server, tmp_path: Path, algorithm: str) -> None:
    file = source(server.at + "good/", algorithm=algorithm)
    path = get(file, tmp_path)
    assert path == tmp_path / "some-set" / "some.mat" and path.read_bytes() == GOOD
    assert read_record(path.parent) == {"some.mat": hashlib.sha256(GOOD).hexdigest()}
    assert get(file, tmp_path) == path
    assert server.requests_seen == ["good"]


def test_git_blob_hash_is_the_one_of_git(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello\n")
    assert file_hash(tmp_path / "x", "git-blob") == "ce013625030ba8dba906f756967f9e9ca394464a"  # git hash-object


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("wrong", r"expected md5 [0-9a-f]{32}, found 102,400 bytes with [0-9a-f]{32}"),
        ("truncated", "the connection broke off before the end"),
        ("missing", "the server answered 404"),
        ("broken", "the server answered 503"),
        ("page", "found a web page instead of data"),
        ("endless", "expected at most 1,048,576 bytes, found more"),
    ],
)
def test_anything_else_is_refused_in_one_line_and_leaves_nothing(
    server: Server, tmp_path: Path, kind: str, reason: str
) -> None:
    with pytest.raises(Unavailable, match=reason) as caught:
        get(source(f"{server.at}{kind}/"), tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert f"get it from {server.at}{kind}/some.mat and put it into {tmp_path / 'some-set'}" in message
    assert list((tmp_path / "some-set").iterdir()) == []
    assert len(server.requests_seen) == (3 if kind in ("truncated", "broken") else 1)  # what may pass is tried again


def test_a_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    assert get(source(server.at + "busy-once/"), tmp_path).read_bytes() == GOOD
    assert server.requests_seen == ["busy-once"] * 2


def test_a_connection_that_breaks_off_is_tried_again(server: Server, tmp_path: Path) -> None:
    assert get(source(server.at + "cut-once/"), tmp_path).read_bytes() == GOOD
    assert server.requests_seen == ["cut-once"] * 2


@pytest.mark.parametrize("first", [DEAD, "missing/", "wrong/", "page/"])
def test_the_next_mirror_serves_when_the_first_does_not(server: Server, tmp_path: Path, first: str) -> None:
    mirror = first if first == DEAD else server.at + first
    assert get(source(mirror, server.at + "good/"), tmp_path).read_bytes() == GOOD


def test_offline_is_one_line_with_file_address_and_folder(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        get(source(DEAD), tmp_path)
    expected = f"(no connection); get it from {DEAD}some.mat and put it into {tmp_path / 'some-set'}"
    assert str(caught.value) == f"some.mat could not be downloaded {expected}"


def test_waiting_between_attempts_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with pytest.raises(Unavailable):
        get(source(DEAD), tmp_path, attempts=4, wait=1.0)
    assert waits == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("place", ["some-set/some.mat", "some.mat"])
def test_a_file_that_is_there_is_used_as_it_is(server: Server, tmp_path: Path, place: str) -> None:
    (tmp_path / "some-set").mkdir()
    (tmp_path / place).write_bytes(b"the user's own variant")
    assert get(source(server.at + "good/"), tmp_path) == tmp_path / place
    assert server.requests_seen == []


def test_a_downloaded_file_that_changes_later_is_refused(server: Server, tmp_path: Path) -> None:
    path = get(source(server.at + "good/"), tmp_path)
    path.write_bytes(GOOD[:-1] + b"\x01")
    with pytest.raises(BadFile, match="expected sha256"):
        verify(path, own_checksum=True)


def test_the_folder_is_the_argument_or_the_environment_or_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BSVI_DATA_DIR", str(tmp_path / "b"))
    assert download.data_folder(tmp_path / "a") == tmp_path / "a"
    assert download.data_folder() == tmp_path / "b"
    monkeypatch.delenv("BSVI_DATA_DIR")
    assert download.data_folder().name == "bsvi"


def test_a_folder_that_cannot_be_made_is_one_line(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable, match=r"some\.mat could not be downloaded \(.*file.*\); get it from"):
        get(source(server.at + "good/"), tmp_path / "file")


def test_progress_is_shown_on_stderr(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    obtain("some-set", source(server.at + "good/"), tmp_path, progress=True)
    shown = capsys.readouterr()
    assert "some.mat" in shown.err and "102.4" in shown.err and shown.out == ""


def test_without_svhns_extra_images_the_line_says_how_to_do_without_them(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "bsvi.data.catalogue.find", lambda name, file, data_dir: tmp_path / file if "extra" not in file else None
    )

    def offline(*args, **kwargs):
        raise Unavailable("extra_32x32.mat could not be downloaded")

    monkeypatch.setattr("bsvi.data.catalogue.obtain", offline)
    with pytest.raises(Unavailable, match="--no-extra"):
        fetch("svhn", tmp_path)
