"""A directory in a file: what it may say, and what its reader makes of changes and of mistakes."""

import asyncio
import contextlib

import pytest

from slipstream.directory.file import FileDirectory, read_file
from slipstream.directory.member import Member


def test_reads_members(tmp_path):
    path = tmp_path / "members.toml"
    path.write_text(
        '[[members]]\naddress = "a:1"\n[[members]]\naddress = "unix:/b"\nmodel = "m"\nepoch = 7\ndraining = true\n'
    )
    assert read_file(path) == (Member("a:1"), Member("unix:/b", "m", 7, draining=True))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[members]]\nmodel = 'm'", "address"),
        ("[[members]]\naddress = 'nowhere'", "host:port"),
        ("[[members]]\naddress = 'a:1'\n[[members]]\naddress = 'a:1'", "twice"),
        ("[[members]]\naddress = 'a:1'\nweight = 3", "weight"),
        ("[[members]]\naddress = 'a:1'\nepoch = true", "epoch"),
        ("[[members]]\naddress = 'a:1'\nepoch = -1", "epoch"),
        ("[[replicas]]\naddress = 'a:1'", "members"),
        ("members = 3", "members"),
        ("members = [3]", "address"),
        ("=", "Invalid"),
    ],
)
def test_says_what_is_wrong(tmp_path, text, complaint):
    path = tmp_path / "members.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        read_file(path)


def test_tells_changes_and_keeps_the_list_over_mistakes(tmp_path, caplog):
    path = tmp_path / "members.toml"

    def complaints():
        return sum("last list stays" in record.message for record in caplog.records)

    async def complained(count):
        async with asyncio.timeout(60):
            while complaints() < count:  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0.01)

    def write(text):
        """All of it at once."""
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(path)

    async def run():
        async with contextlib.aclosing(FileDirectory(path).watch()) as lists:
            first = asyncio.create_task(anext(lists))
            await complained(1)
            assert not first.done(), "there is no file yet"
            write("[[members]]\naddress = 'a:1'")
            assert await asyncio.wait_for(first, 20) == (Member("a:1"),)
            write("[[mem")
            second = asyncio.create_task(anext(lists))
            await complained(2)
            assert not second.done()
            write("[[members]]\naddress = 'a:1'\ndraining = true")
            assert await asyncio.wait_for(second, 20) == (Member("a:1", draining=True),)

    asyncio.run(run())
    assert complaints() == 2
