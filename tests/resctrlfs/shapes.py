# SPDX-License-Identifier: Apache-2.0
"""Other hardware than the Intel CPU that tests/kernel shows, as knobs of the model.

From the kernel's documentation and source alone: filesystems/resctrl.rst and arch/arm64/mpam.rst of Documentation,
fs/resctrl and drivers/resctrl of Linux 7.2 and 7.3. Only OCCUPANCY_ONLY is compared with a kernel, in tests/kernel.
"""

from __future__ import annotations

from typing import Any

AMD: dict[str, Any] = {"packages": 0, "rmids": 256, "closids": 16}
"""AMD QoS without ABMC. That the CPU forgets counters of groups that it does not track is not modelled."""
AMD_ABMC: dict[str, Any] = AMD | {"mbm_cntrs": 32}
"""With assignable counters: 32 in each domain, two for each group."""
OCCUPANCY_ONLY: dict[str, Any] = {"packages": 0, "mbm_total": False, "mbm_local": False}
"""A CPU with CMT and without MBM, or one that was started with `rdt=!mbmtotal,!mbmlocal,!energy,!perf`."""
MPAM: dict[str, Any] = {"mpam": True, "packages": 0, "mbm_local": False, "rmids": 32, "closids": 8}
"""arm64: 8 PARTIDs (CLOSIDs) with 4 PMGs each. Local traffic cannot be told from the rest."""
MPAM_OCCUPANCY: dict[str, Any] = MPAM | {"mbm_total": False}
"""arm64 where no monitor behind the L3 cache can be used, or before Linux 7.3."""
MPAM_ASSIGNED: dict[str, Any] = MPAM | {"mbm_cntrs": 2}
"""arm64 with fewer bandwidth monitors than groups: Linux 7.3 assigns them. Here it can be switched off, too."""
