"""Stand in for ansible-test's get-pip download: pip from this Python's own ensurepip, then from PyPI."""

import ensurepip
import os
import runpy
import sys

args = [arg for arg in sys.argv[1:] if arg not in ("--no-setuptools", "--no-wheel")]
ensurepip.bootstrap()
os.environ.pop("PIP_CONFIG_FILE", None)  # ensurepip points it at /dev/null
for name in [name for name in sys.modules if name == "pip" or name.startswith("pip.")]:
    del sys.modules[name]
sys.argv[1:] = ["install", *args]
runpy.run_module("pip", run_name="__main__", alter_sys=True)
