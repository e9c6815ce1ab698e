"""The ref policy of each tenant: from the config file, and from the deployment's defaults for what it leaves out."""

from typing import NamedTuple

from msgspec import Struct

from lucius.contract import RefRules
from lucius.contract.refs import is_below
from lucius.ports.config import ANY, Config, ConfigSource, RefPolicy, TenantRefPolicy

INPUT_SCHEMES = ("blob", "https")
OUTPUT_SCHEMES = ("blob",)
MAX_REMEMBERED_TENANTS = 10_000


class NamedRules(NamedTuple):
    """Rules, and the section of the config file from which they come."""

    setting: str
    rules: RefRules


class RefDefaults(Struct, frozen=True, kw_only=True):
    """Defaults for what the config file leaves out, and the files of Lucius on this host.

    `file_roots` are the folders in which `lucius dev` permits `file:` refs; without them `file` is no default scheme.
    `named_files` are the protected files that settings name: services recognize a data directory, and not these.
    """

    file_roots: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    named_files: tuple[str, ...] = ()
    reachable: tuple[str, ...] = ()


NO_FILES = RefDefaults()


class RefPolicies:
    """Returns the rules for one tenant's refs, from the config that is in force."""

    def __init__(self, config: ConfigSource, defaults: RefDefaults = NO_FILES) -> None:
        self._source = config
        self._defaults = defaults
        self._config: Config | None = None
        self._known: dict[str, tuple[NamedRules, ...]] = {}

    def use_defaults(self, defaults: RefDefaults) -> None:
        """Use other defaults from now on."""
        if defaults != self._defaults:
            self._defaults, self._known = defaults, {}

    def named_rules(self, tenant: str) -> tuple[NamedRules, ...]:
        """Return the rules of the deployment and of the tenant: a ref must satisfy each."""
        config = self._source.current()
        if config is not self._config or len(self._known) >= MAX_REMEMBERED_TENANTS:
            self._config, self._known = config, {}
        if tenant not in self._known:
            self._known[tenant] = tuple(_rules_for(config, self._defaults, tenant))
        return self._known[tenant]

    def rules(self, tenant: str) -> list[RefRules]:
        """Return the rules without their sections, for a directive."""
        return [named.rules for named in self.named_rules(tenant)]

    def callback_hosts(self, tenant: str) -> tuple[str, tuple[str, ...]] | None:
        """Return the name of the setting and the tenant's own callback hosts; None if it has no list."""
        name, policy = _tenant_policy(self._source.current(), tenant)
        if policy is None:
            return None
        if policy.callback_hosts is not None:
            return f"tenants.{name}.refs.callback_hosts", policy.callback_hosts
        return (f"tenants.{name}.refs.callback_hosts", policy.hosts) if policy.hosts is not None else None


def _rules_for(config: Config, defaults: RefDefaults, tenant: str) -> list[NamedRules]:
    dev = ("file",) if defaults.file_roots else ()
    found = [NamedRules("refs", _of_deployment(config.refs, defaults, dev, tenant))]
    name, policy = _tenant_policy(config, tenant)
    if policy is not None:
        schemes = (policy.input_schemes or policy.schemes, policy.output_schemes or policy.schemes)
        found.append(NamedRules(f"tenants.{name}.refs", _rules(policy, *schemes, tenant)))
    return found


def _of_deployment(policy: RefPolicy, defaults: RefDefaults, dev: tuple[str, ...], tenant: str) -> RefRules:
    inputs = policy.input_schemes or policy.schemes or (*INPUT_SCHEMES, *dev)
    outputs = policy.output_schemes or policy.schemes or (*OUTPUT_SCHEMES, *dev)
    if "file" not in (*inputs, *outputs):
        # Services refuse `blob:` refs into a data directory by its files, whatever it is called on their host.
        below = (path for path in defaults.protected if is_below(path, defaults.reachable))
        protected = tuple(dict.fromkeys((*below, *defaults.named_files)))
        return _rules(policy, inputs, outputs, tenant, RefDefaults(protected=protected))
    return _rules(policy, inputs, outputs, tenant, defaults)


def _rules(
    policy: RefPolicy,
    inputs: tuple[str, ...] | None,
    outputs: tuple[str, ...] | None,
    tenant: str,
    files: RefDefaults = NO_FILES,
) -> RefRules:
    prefixes = policy.prefixes
    return RefRules(
        input_schemes=_listed(inputs),
        output_schemes=_listed(outputs),
        hosts=_listed(policy.hosts),
        containers=_listed(policy.containers),
        prefixes=None if prefixes is None else [prefix.replace("{tenant}", tenant) for prefix in prefixes],
        file_roots=_listed(files.file_roots or None),
        protected=list(files.protected),
        reachable=list(files.reachable),
    )


def _listed(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)


def _tenant_policy(config: Config, tenant: str) -> tuple[str, TenantRefPolicy | None]:
    """Return the name of the section (the tenant's, else "*") and its `refs`; None for `refs` if neither has any."""
    for name in (tenant, ANY):
        listed = (config.tenants or {}).get(name)
        if listed is not None and listed.refs is not None:
            return name, listed.refs
    return tenant, None
