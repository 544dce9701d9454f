"""What pyproject.toml cannot say: the C++ kernels, compiled where there is a compiler."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "kernels"))

from slipway_kernels.build import BuildError, build  # noqa: E402

LIBRARY = "slipway_kernels._cpu"


class BuildKernels(build_ext):
    """One shared library with a plain C interface: no Python version is part of its name."""

    def build_extension(self, ext: Extension) -> None:
        library = Path(self.get_ext_fullpath(ext.name)).resolve()
        library.unlink(missing_ok=True)  # it may be newer than its objects, and for another machine
        try:
            build(library, ROOT / "build" / "kernels")
        except BuildError as error:
            print(f"slipway: installing without the CPU kernels. {error}", file=sys.stderr)

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"


class PlatformWheel(bdist_wheel):
    """Any Python 3, this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    packages=[
        *find_packages("runtime", include=["slipway", "slipway.*"]),
        *find_packages("kernels", include=["slipway_kernels", "slipway_kernels.*"]),
        *find_packages("operator", include=["slipway_operator", "slipway_operator.*"]),
    ],
    package_data={
        "": ["py.typed"],
        "slipway.api": ["console/*"],
        "slipway_kernels": ["*/*.cpp", "*/*.inl", "*/*.h"],
    },
    ext_modules=[Extension(LIBRARY, sources=[], optional=True)],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel},
)
