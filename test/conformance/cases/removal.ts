import type { Bench, Pod } from '../bench.js';
import type { Case, Occasion } from '../case.js';
import type { Version } from '../specification/versions.js';
import { newest } from './newest.js';

const SECTION = '2 DEL';

/** DEL, with little or nothing to remove. */
export function removalCases({ subject }: Occasion): readonly Case[] {
  return [
    thrice(),
    never(),
    withNetns('empty', { title: 'DEL without CNI_NETNS succeeds and frees the held addresses', value: '' }),
    withNetns('absent', { title: 'DEL with CNI_NETNS unset succeeds and frees the held addresses', value: undefined }),
    withNetns('dead', {
      title: 'DEL with the path of a namespace that has gone succeeds and frees the held addresses',
      value: '/run/netns/conformance-nowhere',
    }),
    withoutInterface(),
    ...(subject.kind === 'interface' && subject.makesInterface ? foreign() : []),
  ];
}

/** The objects after one container was added and deleted. */
async function afterFirst(bench: Bench, version: Version): Promise<readonly string[]> {
  const first = bench.pod();
  await bench.add({ pod: first, version });
  await bench.del({ pod: first, version });
  return bench.holdings();
}

function thrice(): Case {
  return {
    id: 'del.thrice',
    section: SECTION,
    level: 'MUST',
    title: 'DEL succeeds as often as it comes',
    ask: async (bench) => {
      const version = newest(bench);
      const before = await afterFirst(bench, version);
      const pod = bench.pod();
      await bench.add({ pod, version });
      for (let times = 0; times < 3; times++) await bench.del({ pod, version });
      await bench.expectNothingLeft('DEL', before);
    },
  };
}

function never(): Case {
  return {
    id: 'del.unknown',
    section: SECTION,
    level: 'MUST',
    title: 'DEL of a container that never was succeeds',
    ask: async (bench) => bench.del({ pod: bench.pod(), version: newest(bench) }),
  };
}

function withNetns(id: string, { title, value }: { title: string; value: string | undefined }): Case {
  return {
    id: `del.netns.${id}`,
    section: SECTION,
    level: 'SHOULD',
    title,
    ask: async (bench) => {
      const version = newest(bench);
      const before = await afterFirst(bench, version);
      const pod = bench.pod();
      await bench.add({ pod, version });
      bench.removeNamespace(pod);
      await bench.del({ pod, version, env: { CNI_NETNS: value } });
      await bench.expectNothingLeft('DEL', before);
    },
  };
}

function withoutInterface(): Case {
  return {
    id: 'del.interface-gone',
    section: SECTION,
    level: 'MUST',
    title: 'DEL succeeds when the interface was already removed',
    ask: async (bench) => {
      const { subject } = bench.occasion;
      if (subject.kind !== 'interface' || !subject.makesInterface) bench.notApplicable('it makes no interface');
      const version = newest(bench);
      const before = await afterFirst(bench, version);
      const pod = bench.pod();
      await bench.add({ pod, version });
      pod.namespace.ip('link', 'delete', subject.interfaceName);
      await bench.del({ pod, version });
      await bench.expectNothingLeft('DEL', before);
    },
  };
}

/** The path of a namespace may belong to another one at the time of DEL: it is used again. */
function foreign(): readonly Case[] {
  const rest = { section: SECTION, level: 'ADVICE' } as const;
  return [
    {
      ...rest,
      id: 'del.foreign.interface',
      title: 'DEL of an unknown container leaves an interface that the plugin did not make',
      ask: async (bench) => {
        const pod = bench.pod();
        bench.foreignInterface(pod);
        await bench.del({ pod, version: newest(bench) });
        expectThere(bench, pod);
      },
    },
    {
      ...rest,
      id: 'del.foreign.container',
      title: "DEL of an unknown container leaves another container's interface",
      ask: async (bench) => {
        const version = newest(bench);
        const owner = bench.pod();
        await bench.add({ pod: owner, version });
        await bench.del({ pod: { ...bench.pod(), namespace: owner.namespace }, version });
        expectThere(bench, owner);
      },
    },
  ];
}

function expectThere(bench: Bench, pod: Pod): void {
  const link = pod.namespace.link(bench.occasion.subject.interfaceName);
  bench.require(link !== undefined, 'an interface of another owner has gone');
}
