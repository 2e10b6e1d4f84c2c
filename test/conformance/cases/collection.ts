import type { Bench, Pod } from '../bench.js';
import type { Case, Level, Occasion } from '../case.js';
import { steadyText } from '../machine/namespace.js';
import { added } from '../machine/residue.js';

const SECTION = '2 GC';
const VERSION = '1.1.0';

/** The key's name in the specification, and in an earlier draft of it; libcni writes both. */
const KEYS = ['cni.dev/valid-attachments', 'cni.dev/attachments'];

/** GC and STATUS, which were added in 1.1.0. */
export function collectionCases({ versions, subject }: Occasion): readonly Case[] {
  if (!versions.includes(VERSION)) return [];
  const keepsRecords = subject.kind !== 'meta' && (subject.givesDistinctAddresses || subject.makesInterface);
  return [
    {
      id: 'status',
      section: '2 STATUS',
      level: 'MUST',
      title: 'STATUS of a plugin that can ADD succeeds, and says nothing',
      ask: async (bench) => bench.expectSuccess('STATUS', await bench.call('STATUS', { version: VERSION })),
    },
    {
      id: 'status.empty-variables',
      section: '2 STATUS',
      level: 'SHOULD',
      title: 'STATUS does not mind empty variables, as libcni sends them',
      ask: async (bench) => bench.expectSuccess('STATUS', await bench.call('STATUS', { version: VERSION, env: EMPTY })),
    },
    {
      id: 'gc.spares',
      section: SECTION,
      level: 'MUST',
      title: 'GC leaves the listed attachments as they are',
      ask: spares,
    },
    ...(keepsRecords ? [collects('list', 1), collects('empty', 0)] : []),
    sparesAll({ id: 'gc.absent', level: 'ADVICE', title: 'GC without a list takes nothing from living containers' }),
    {
      id: 'gc.null',
      section: SECTION,
      level: 'SHOULD',
      title: 'GC with null for a list succeeds',
      ask: async (bench) => bench.expectSuccess('GC', await gc(bench, null)),
    },
    {
      id: 'gc.nothing',
      section: SECTION,
      level: 'MUST',
      title: 'GC of a node without containers succeeds, twice',
      ask: async (bench) => {
        for (let times = 0; times < 2; times++) bench.expectSuccess('GC', await gc(bench, []));
      },
    },
  ];
}

const EMPTY = { CNI_CONTAINERID: '', CNI_NETNS: '', CNI_IFNAME: '' };

function gc(bench: Bench, list: readonly Pod[] | null | undefined) {
  const ifname = bench.occasion.subject.interfaceName;
  const value = list?.map(({ containerId }) => ({ containerID: containerId, ifname })) ?? list;
  const config = Object.fromEntries(KEYS.map((key) => [key, value]));
  return bench.call('GC', { version: VERSION, env: EMPTY, config: { ...config, prevResult: undefined } });
}

async function spares(bench: Bench): Promise<void> {
  const pods = [bench.pod(), bench.pod()];
  const values: unknown[] = [];
  for (const pod of pods) values.push((await bench.add({ pod, version: VERSION })).value);
  const addresses = () => pods.map(({ namespace }) => steadyText(namespace.links())).join();
  const [before, held] = [addresses(), await bench.holdings()];
  bench.expectSuccess('GC', await gc(bench, pods));
  bench.require(addresses() === before, 'a listed container has not what it had');
  const lost = added(await bench.holdings(), held);
  bench.require(lost.length === 0, `GC took listed attachments: ${lost.join('; ')}`);
  for (const [index, pod] of pods.entries()) {
    const config = { prevResult: values[index] };
    bench.expectSuccess('CHECK', await bench.call('CHECK', { pod, version: VERSION, config }));
  }
}

/** @param kept - the number of listed attachments, of two */
function collects(id: string, kept: number): Case {
  return {
    id: `gc.collects.${id}`,
    section: SECTION,
    level: 'SHOULD',
    title: kept === 0 ? 'GC with an empty list takes everything' : 'GC takes unlisted attachments',
    ask: async (bench) => {
      const first = bench.pod();
      await bench.add({ pod: first, version: VERSION });
      await bench.del({ pod: first, version: VERSION });
      const valid = Array.from({ length: kept }, () => bench.pod());
      for (const pod of valid) await bench.add({ pod, version: VERSION });
      const before = await bench.holdings();
      await bench.add({ pod: bench.pod(), version: VERSION });
      bench.require(added(before, await bench.holdings()).length > 0, 'ADD left no trace by which GC could be judged');
      bench.expectSuccess('GC', await gc(bench, valid));
      await bench.expectNothingLeft('GC', before);
    },
  };
}

function sparesAll({ id, level, title }: { id: string; level: Level; title: string }): Case {
  return {
    id,
    section: SECTION,
    level,
    title,
    ask: async (bench) => {
      const pod = bench.pod();
      await bench.add({ pod, version: VERSION });
      const [before, held] = [steadyText(pod.namespace.links()), await bench.holdings()];
      bench.expectSuccess('GC', await gc(bench, undefined));
      bench.require(steadyText(pod.namespace.links()) === before, 'a living container has not what it had');
      const lost = added(await bench.holdings(), held);
      bench.require(lost.length === 0, `GC took what a living container has: ${lost.join('; ')}`);
    },
  };
}
