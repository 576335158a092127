"""The form of a name like my_package.my_module.MyClass, by which a configuration names a user's code."""

from __future__ import annotations

import re

DOTTED_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
