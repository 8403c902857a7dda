# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Iterator

import pytest
import real


@pytest.fixture(scope="session", autouse=True)
def no_images_stay() -> Iterator[None]:
    yield
    real.remove_images()
    assert real.left_behind() == []
