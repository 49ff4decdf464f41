"""Pack the Python packages that Spark's executors need: `pack.py ARCHIVE [--without NAME …]`.

    penstock[spark] and all that it needs, as installed here ─▶ ARCHIVE ─▶ PYTHONPATH of executors

Rules that hold here:
- What is packed is what this Python has installed: executors run the versions that were tested.
- pyspark is not packed: each node has Spark's own. What only the driver needs may stay out, too:
  `--without matplotlib deltalake`, and `opendp` where no view is differentially private.
- Packages hold machine code: executors need the same minor version of Python, and the same kind of
  processor.
"""

import argparse
import re
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

OURS = "penstock"
EXTRAS = ("gateway", "kafka", "spark", "postgres")
SPARKS_OWN = frozenset({"pyspark", "py4j"})


def find_needed(
    name: str, extras: tuple[str, ...], without: frozenset[str], known: dict[str, Distribution]
) -> None:
    """Add a package and what it needs to those that are known."""
    plain = re.sub(r"[-_.]+", "-", name).lower()
    if plain in without or (plain in known and not extras):
        return
    try:
        found = known.setdefault(plain, distribution(name))
    except PackageNotFoundError:
        sys.exit(f"the package {name} is not installed here → pip install 'penstock[all]'")
    for text in found.requires or ():
        needed = Requirement(text)
        # What an extra of ours names in turn is ours again, with other extras.
        wanted = [""] if not extras else list(extras)
        if needed.marker is None or any(needed.marker.evaluate({"extra": it}) for it in wanted):
            find_needed(needed.name, tuple(needed.extras), without, known)


def list_files(found: Distribution) -> Iterator[tuple[Path, str]]:
    """Yield the files of a package, and what they are called in the archive."""
    for file in found.files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts and file.suffix != ".pth":
            path = Path(str(found.locate_file(file)))
            if path.is_file():
                yield path, str(file)


def list_ours() -> Iterator[tuple[Path, str]]:
    """Yield our own modules, wherever they are installed from."""
    spec = find_spec(OURS)
    if spec is None or spec.origin is None:
        sys.exit("Penstock is not installed here → pip install 'penstock[all]'")
    folder = Path(spec.origin).parent
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path, str(Path(OURS) / path.relative_to(folder))


def pack(archive: Path, without: frozenset[str] = frozenset()) -> int:
    """Write the archive; return how many packages are in it."""
    known: dict[str, Distribution] = {}
    find_needed(OURS, EXTRAS, SPARKS_OWN | without, known)
    partial = archive.with_name(f".{archive.name}.partial")
    packed = archive.suffix in {".gz", ".tgz"}
    with tarfile.open(partial, "w:gz" if packed else "w:") as target:
        for name, found in sorted(known.items()):
            for path, called in list_ours() if name == OURS else list_files(found):
                target.add(path, called)
    partial.replace(archive)
    return len(known)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("archive", type=Path, help="a new file: .tar.gz, or .tar")
    parser.add_argument("--without", nargs="+", default=[], metavar="NAME", help="leave these out")
    given = parser.parse_args()
    print(f"{pack(given.archive, frozenset(given.without))} packages in {given.archive}")
