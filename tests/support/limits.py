"""What a process may do, set before Python begins there."""

import ctypes


def obey_modes() -> None:
    """For `launch(before=...)`: root is bound by the modes of files, as everybody else is."""
    drop_from_bounding_set, cap_dac_override = 24, 1
    ctypes.CDLL(None).prctl(drop_from_bounding_set, cap_dac_override, 0, 0, 0)
