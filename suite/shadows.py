"""Files in the current folder that have the name of a package which the suite imports."""

import sys
from importlib.machinery import PathFinder
from pathlib import Path

PACKAGES = ("numpy", "scipy", "torch", "tensorflow", "keras", "jax", "flax", "msgspec", "pandas")


def refuse_shadows(code: int) -> None:
    """End the process with exit code `code` if a file in the current folder would be imported instead of
    an installed package of `PACKAGES`. A sentence on standard error names both."""
    current = Path.cwd()
    other_paths = [entry for entry in sys.path if Path(entry or ".").resolve() != current]
    for name in PACKAGES:
        for shadow in (current / f"{name}.py", current / name / "__init__.py"):
            if not shadow.is_file():
                continue
            spec, installed = PathFinder.find_spec(name), PathFinder.find_spec(name, other_paths)
            if installed is None or spec is None or spec.origin is None or installed.origin is None:
                continue
            if Path(spec.origin).resolve() == shadow.resolve() != Path(installed.origin).resolve():
                print(
                    f"{shadow} is imported instead of the package {name} ({installed.origin}): rename "
                    "it, or start in another folder",
                    file=sys.stderr,
                )
                sys.exit(code)
