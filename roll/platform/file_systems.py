"""On what kind of file system a path lies."""

from __future__ import annotations

from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
PLAIN = (
    "nfs nfs4 cifs smb smbfs smb3 lustre gpfs beegfs ceph glusterfs afs orangefs pvfs2 ocfs2 gfs2 panfs wekafs fhgfs ncpfs coda"
)
BY_A_PROGRAM = (
    "sshfs glusterfs ceph ceph-fuse s3fs gcsfuse rclone juicefs blobfuse blobfuse2 mfs davfs davfs2 curlftpfs weed "
    "alluxio-fuse goofys mount-s3"
)
OF_NETWORKS = {*PLAIN.split(), *(f"fuse.{name}" for name in BY_A_PROGRAM.split())}


def of_network(path: Path) -> str:
    """The type of the network file system that the path lies on; empty if it lies on none, or that cannot be known."""
    try:
        mounts = MOUNTS.read_text().splitlines()
    except OSError:
        return ""
    path, found, length = path.resolve(), "", -1
    for mount in mounts:
        before, _, after = mount.partition(" - ")
        place = before.split()[4].encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")
        if path.is_relative_to(place) and len(place) >= length:  # of several at one place the last is seen
            found, length = after.split()[0], len(place)
    return found if found in OF_NETWORKS else ""
