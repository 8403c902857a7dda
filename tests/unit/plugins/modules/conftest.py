# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.modules import registry_probe
from ansible_collections.dgxspark.serving.tests.unit.plugins.fake_engine import FakeEngine, FakeImage


@pytest.fixture
def probe(run_module, monkeypatch):
    """Runs the module on images in memory; the result has the engine as well."""

    def run(images: dict[str, FakeImage] | FakeImage, fake: FakeEngine | None = None, **options: Any) -> dict[str, Any]:
        images = images if isinstance(images, dict) else {"img": images}
        engine = fake or FakeEngine(images)
        monkeypatch.setattr(registry_probe.host_python, "connect_engine", lambda docker_host: engine)
        # Worker processes would have copies of the engine.
        monkeypatch.setattr(os, "cpu_count", lambda: 1)
        result = run_module(registry_probe, **{"image": list(images), "cache": False, **options})
        assert sorted(engine.created) == sorted(set(engine.removed) & set(engine.created))
        return result

    return run
