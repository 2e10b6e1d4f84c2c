import { EncapsulationMode, Pool } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { formatPrefix, parsePrefix } from '@podwire/shared/net/prefix';

import { readInstallation } from '../../clients/network-config.js';
import type { Service } from '../../clients/services.js';
import { text, type Form } from '../../command-line/forms.js';
import { option, repeatedOption, type Verb } from '../../command-line/verb.js';
import { checksReport } from '../../output/report.js';
import { listPools } from '../../resources/ippool.js';

const CIDR: Form<string> = {
  placeholder: 'CIDR',
  read: (input) => {
    const parsed = parsePrefix(input);
    if (parsed.ok) return { ok: true, value: formatPrefix(parsed.prefix) };
    return { ok: false, fault: `${parsed.fault}; it must be like 10.65.0.0/16` };
  },
};

/** The pool of the chart's values. */
const DEFAULT_POOL = '10.65.0.0/16';

const POOL = repeatedOption(
  '--pool',
  CIDR,
  `range of pods to check, as a pool with VXLAN (the pools of podwire-ipam; ${DEFAULT_POOL} while it does not answer)`,
);

const ROOT = option('--root', text('DIRECTORY'), 'where the file system of the node is mounted, such as /host (/)');

export const preflight: Verb = {
  name: 'preflight',
  about: 'whether this node has what Podwire needs, before or after the installation',
  details:
    'Needs no running service, and changes nothing. Run it as root, in the network namespace of the node.\n' +
    'Exit code 4: a check failed.',
  options: [POOL, ROOT],
  examples: ['preflight', 'preflight --pool 10.65.0.0/16 --pool fd65::/48', 'preflight --root /host -o json'],
  run: async (input, { ipam, clock, env }) => {
    const given = input.all(POOL);
    const pools =
      given.length > 0
        ? given.map((cidr) => poolOf(cidr))
        : ((await knownPools(ipam)) ?? [poolOf(DEFAULT_POOL, 'of the chart')]);
    const root = input.get(ROOT) ?? '/';
    // Loaded here, as no other command needs the addon.
    const { preflight: runChecks } = await import('@podwire/node/preflight/facts');
    return checksReport(await runChecks({ root, pools, installation: await readInstallation(env, root), clock }));
  },
};

/** A pool as the chart makes it. */
function poolOf(cidr: string, name = cidr): Pool {
  return Pool.fromPartial({
    name,
    cidr,
    vxlanMode: EncapsulationMode.ENCAPSULATION_MODE_ALWAYS,
    ipipMode: EncapsulationMode.ENCAPSULATION_MODE_NEVER,
    natOutgoing: true,
  });
}

async function knownPools(ipam: Service): Promise<Pool[] | undefined> {
  try {
    const pools = await listPools(ipam);
    return pools.length > 0 ? pools : undefined;
  } catch (error) {
    if (error instanceof Failure) return undefined;
    throw error;
  }
}
