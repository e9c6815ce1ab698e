"""Names that no ref may have below a blob folder or a file root: of configuration and key files, and hidden ones."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase, translate

DATA_FILES = ("token.secret", "webhook.secret", "webhook-master.secret", "dev.key", "ledger.db")
"""Files that Lucius creates in its data directory: a folder that holds one of them is taken for a data directory."""
RESERVED_NAMES = (
    *("lucius.yaml", "lucius.yml", "lucius.json", ".env", ".env.*", "ledger.db", "dev.key"),
    *("*.secret", "*.pem", "*.p12", "*.pfx", "*.jks", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"),
    *(".netrc", ".git-credentials", ".npmrc", ".pypirc", ".pgpass", "kubeconfig", "*.kdbx"),
)
"""Name patterns of files. They match each of DATA_FILES, so that no client can make a folder look like one of ours."""
RESERVED_BELOW_FILE_ROOTS = ("*.key",)
"""Further patterns below a file root. Among blobs, a name that ends in .key is rather that of a Keynote document."""
RESERVED_FOLDERS = (".lucius", ".ssh", ".aws", ".azure", ".kube", ".gnupg", ".docker")
"""Folders that hold keys. Each is hidden, so that few names must be compared."""

_RESERVED_BLOB = re.compile("|".join(map(translate, RESERVED_NAMES)))
_RESERVED_FILE = re.compile("|".join(map(translate, (*RESERVED_NAMES, *RESERVED_BELOW_FILE_ROOTS))))


def find_name_fault(names: Sequence[str], *, allow_hidden: bool, is_blob: bool = False) -> str | None:
    """Return why the names that lead from a root to a file are refused; None if they are not.

    The names of the root itself are left out: the operator chose them. `is_blob` is True if the root is a blob folder.
    """
    hidden = [name for name in names if name.startswith(".")]
    if hidden and not allow_hidden:
        rule = "below a file root no name may begin with a dot; LUCIUS_FILE_ROOTS can name the folder itself"
        return f"has the hidden name {hidden[0]}: {rule}"
    for name in hidden:
        if name.lower() in RESERVED_FOLDERS:
            return f"has the folder name {name}, which is reserved for keys"
    if not names or not (_RESERVED_BLOB if is_blob else _RESERVED_FILE).match(names[-1].lower()):
        return None
    patterns = (*RESERVED_NAMES, *RESERVED_BELOW_FILE_ROOTS)
    pattern = next(pattern for pattern in patterns if fnmatchcase(names[-1].lower(), pattern))
    return f"has the name {names[-1]}, which is reserved for configuration and key files ({pattern})"
