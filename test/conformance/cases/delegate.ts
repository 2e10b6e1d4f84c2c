import { join } from 'node:path';

import type { Bench } from '../bench.js';
import type { Case, Occasion } from '../case.js';
import { isAtLeast, SINCE, type Version } from '../specification/versions.js';
import { expectInterfaceMade, expectKernelAgrees } from './kernel-agreement.js';

/** The newest version that every release of the calling plugins has. */
const NEWEST_OF_CALLERS = '1.0.0';

const CALLERS: Readonly<Record<string, Readonly<Record<string, unknown>>>> = {
  ptp: { type: 'ptp' },
  bridge: { type: 'bridge', bridge: 'conformance0', isGateway: true },
};

/** An IPAM plugin called by a plugin of another project, in every version that both have. */
export function delegateCases({ subject, versions }: Occasion): readonly Case[] {
  if (subject.kind !== 'ipam') return [];
  const shared = versions.filter((version) => isAtLeast(NEWEST_OF_CALLERS, version));
  return Object.keys(CALLERS).flatMap((caller) =>
    shared.map((version) => ({
      id: `delegate.${caller}.${version}`,
      section: '4 Delegated plugins',
      level: 'MUST',
      title: `under ${caller}: the interface has the address that was given, and DEL gives it back`,
      ask: (bench) => delegated(bench, caller, version),
    })),
  );
}

async function delegated(bench: Bench, caller: string, version: Version): Promise<void> {
  const call = { version, config: CALLERS[caller] ?? {}, program: join(bench.occasion.subject.binDir, caller) };
  const first = bench.pod();
  await bench.add({ ...call, pod: first });
  await bench.del({ ...call, pod: first });
  const before = await bench.holdings();
  const pod = bench.pod();
  const { value, result } = await bench.checkedAdd({ ...call, pod });
  bench.require(result.ips.length > 0, 'no address in the result');
  expectKernelAgrees(bench, pod, result);
  expectInterfaceMade(bench, pod, result);
  if (isAtLeast(version, SINCE.CHECK)) {
    const config = { ...call.config, prevResult: value };
    bench.expectSuccess('CHECK', await bench.call('CHECK', { ...call, pod, config }));
  }
  await bench.del({ ...call, pod });
  await bench.expectNothingLeft('DEL', before);
  bench.expectPodEmpty('DEL', pod);
}
