import type { Bench, Pod } from '../bench.js';
import type { Case, Occasion } from '../case.js';
import { parseJson } from '../specification/json.js';
import { readResult } from '../specification/result.js';
import { newest } from './newest.js';

/** A node that fills up and is emptied as fast as a runtime can. */
export function stormCases({ subject, pods, parallel }: Occasion): readonly Case[] {
  if (!subject.givesDistinctAddresses && subject.kind !== 'interface') return [];
  return [
    {
      id: 'storm',
      section: '2 ADD',
      level: 'MUST',
      title: `${pods} containers, ${parallel} at a time: all come, no address twice, all go, nothing is left`,
      ask: storm,
    },
  ];
}

async function storm(bench: Bench): Promise<void> {
  const { pods: count, subject } = bench.occasion;
  const version = newest(bench);
  const first = bench.pod();
  await bench.add({ pod: first, version });
  await bench.del({ pod: first, version });
  const before = await bench.holdings();
  const pods = Array.from({ length: count }, () => bench.pod());
  const holders = new Map<string, number>();
  await inParallel(bench, pods, async (pod) => {
    const outcome = await bench.call('ADD', { pod, version });
    bench.expectSuccess('ADD', outcome);
    if (subject.kind === 'meta') return;
    for (const { address } of readResult(version, parseJson(outcome.stdout)).ips) {
      holders.set(address, (holders.get(address) ?? 0) + 1);
    }
  });
  const twice = [...holders].filter(([, times]) => times > 1 && subject.givesDistinctAddresses);
  bench.require(twice.length === 0, `given more than once: ${twice.map(([address]) => address).join(', ')}`);
  await inParallel(bench, pods, async (pod) => bench.del({ pod, version }));
  await bench.expectNothingLeft('the storm', before);
  for (const pod of pods) bench.expectPodEmpty('the storm', pod);
}

async function inParallel(bench: Bench, pods: readonly Pod[], act: (pod: Pod) => Promise<void>): Promise<void> {
  const waiting = [...pods];
  const work = async () => {
    for (let pod = waiting.shift(); pod !== undefined; pod = waiting.shift()) await act(pod);
  };
  await Promise.all(Array.from({ length: bench.occasion.parallel }, work));
}
