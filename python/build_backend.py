# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""meson-python's build backend. nanobind has the stable ABI from Python 3.12 on; older Pythons get their own wheel."""
import sys
import sysconfig

import mesonpy
from mesonpy import (get_requires_for_build_editable, get_requires_for_build_sdist,  # noqa: F401
                     get_requires_for_build_wheel)


def _settings(given):
    settings = dict(given or {})
    if sys.version_info < (3, 12) or sysconfig.get_config_var("Py_GIL_DISABLED"):
        arguments = settings.get("setup-args", [])
        arguments = [arguments] if isinstance(arguments, str) else arguments
        settings["setup-args"] = [*arguments, "-Dpython.allow_limited_api=false"]
    return settings


def build_sdist(sdist_directory, config_settings=None):
    return mesonpy.build_sdist(sdist_directory, _settings(config_settings))


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return mesonpy.build_wheel(wheel_directory, _settings(config_settings), metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return mesonpy.build_editable(wheel_directory, _settings(config_settings), metadata_directory)
