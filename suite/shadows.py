"""Files in the current folder that have the name of a package which the suite imports."""

import sys
from importlib.machinery import PathFinder
from pathlib import Path

PACKAGES = ("numpy", "scipy", "torch", "tensorflow", "keras", "jax", "flax", "msgspec", "pandas")


def refuse_shadows(code: int) -> None:
    """End the process with exit code `code` if a file of the current folder is imported instead of an
    installed package. One sentence on standard error names both."""
    here = Path.cwd()
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    for name in PACKAGES:
        for file in (here / f"{name}.py", here / name / "__init__.py"):
            if not file.is_file():
                continue
            spec, other = PathFinder.find_spec(name), PathFinder.find_spec(name, elsewhere)
            if other is None or spec is None or spec.origin is None or other.origin is None:
                continue
            if Path(spec.origin).resolve() == file.resolve() != Path(other.origin).resolve():
                print(
                    f"{file} is imported instead of the package {name} ({other.origin}): rename it, or "
                    "start in another folder",
                    file=sys.stderr,
                )
                sys.exit(code)
