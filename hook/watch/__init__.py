# SPDX-License-Identifier: Apache-2.0
"""`watch`: moves what exec brings into a container into the container's group at once, told by the kernel."""
