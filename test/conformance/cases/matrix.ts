import type { Bench, Pod } from '../bench.js';
import type { Case, Level, Occasion } from '../case.js';
import { isObject, listOf } from '../specification/json.js';
import { previousResult } from '../specification/previous-result.js';
import { isAtLeast, SINCE, type Version } from '../specification/versions.js';
import { expectInterfaceMade, expectKernelAgrees } from './kernel-agreement.js';

/** The position of the plugin in its chain. */
type Position = 'native' | 'chained';

interface Cell {
  readonly version: Version;
  readonly position: Position;
}

/** Every verb × version × position that the specification has. */
export function matrix(occasion: Occasion): readonly Case[] {
  const cells = occasion.versions.flatMap((version) =>
    positions(occasion, version).map((position): Cell => ({ version, position })),
  );
  return [...cells.flatMap(attachmentCases), ...occasion.versions.flatMap((version) => refusals(version, occasion))];
}

/** prevResult was added in 0.3.0. An IPAM plugin has no position in a chain; a chained plugin has none outside. */
function positions({ subject }: Occasion, version: Version): readonly Position[] {
  const canChain = isAtLeast(version, '0.3.0');
  if (subject.kind === 'ipam') return ['native'];
  if (subject.kind === 'meta') return canChain ? ['chained'] : [];
  return canChain ? ['native', 'chained'] : ['native'];
}

const podOf = (bench: Bench, { position }: Cell): Pod => bench.pod({ isChained: position === 'chained' });

function attachmentCases(cell: Cell): readonly Case[] {
  const { version, position } = cell;
  const suffix = `${position}.${version}`;
  const checks = isAtLeast(version, SINCE.CHECK) ? [checkCase(cell)] : [];
  const chained = position === 'chained' ? [passesOnCase(cell)] : [];
  return [
    {
      id: `add.form.${suffix}`,
      section: '5 Success',
      level: 'MUST',
      title: `ADD answers in the form of ${version}`,
      ask: async (bench) => {
        await bench.checkedAdd({ pod: podOf(bench, cell), version });
      },
    },
    {
      id: `add.kernel.${suffix}`,
      section: '2 ADD',
      level: 'MUST',
      title: 'the answer of ADD equals the kernel’s state',
      ask: (bench) => agreement(bench, cell),
    },
    {
      id: `del.${suffix}`,
      section: '2 DEL',
      level: 'MUST',
      title: 'DEL takes everything away, and says nothing',
      ask: (bench) => takesAway(bench, cell),
    },
    ...checks,
    ...chained,
  ];
}

async function agreement(bench: Bench, cell: Cell): Promise<void> {
  const { kind } = bench.occasion.subject;
  const pod = podOf(bench, cell);
  const { result } = await bench.add({ pod, version: cell.version });
  if (kind === 'ipam') {
    bench.require(result.ips.length > 0, 'gave no address');
    bench.require(result.interfaces.length === 0, 'an IPAM plugin reports no interfaces');
    bench.require(
      result.ips.every((ip) => ip.interface === undefined),
      'an IPAM plugin knows no index of interfaces',
    );
    bench.expectPodEmpty('ADD of an IPAM plugin', pod);
    return;
  }
  expectKernelAgrees(bench, pod, result);
  if (kind === 'interface') expectInterfaceMade(bench, pod, result);
}

async function takesAway(bench: Bench, cell: Cell): Promise<void> {
  const { version } = cell;
  const first = podOf(bench, cell);
  await bench.add({ pod: first, version });
  await bench.del({ pod: first, version });
  // Objects that the first container of a node creates may stay: a bridge, a chain of the packet filter.
  const before = await bench.holdings();
  const pod = podOf(bench, cell);
  const { value } = await bench.add({ pod, version });
  // Before 0.4.0 runtimes had no result to pass.
  const config = isAtLeast(version, '0.4.0') && bench.occasion.subject.kind !== 'ipam' ? { prevResult: value } : {};
  await bench.del({ pod, version, config });
  await bench.expectNothingLeft('DEL', before);
  bench.expectPodEmpty('DEL', pod);
}

function checkCase(cell: Cell): Case {
  const { version, position } = cell;
  return {
    id: `check.${position}.${version}`,
    section: '2 CHECK',
    level: 'MUST',
    title: 'CHECK succeeds on what ADD made, and says nothing',
    ask: async (bench) => {
      const pod = podOf(bench, cell);
      const { value } = await bench.add({ pod, version });
      bench.expectSuccess('CHECK', await bench.call('CHECK', { pod, version, config: { prevResult: value } }));
    },
  };
}

function passesOnCase(cell: Cell): Case {
  return {
    id: `chain.passes-on.${cell.version}`,
    section: '2 ADD',
    level: 'SHOULD',
    title: 'a given prevResult is part of the result',
    ask: async (bench) => {
      const pod = podOf(bench, cell);
      const { value } = await bench.add({ pod, version: cell.version });
      if (pod.preceding === undefined || !isObject(value)) return;
      const given: Readonly<Record<string, unknown>> = { ...previousResult(cell.version, pod.preceding) };
      for (const key of ['interfaces', 'ips', 'routes']) {
        const texts = listOf(value[key]).map(essence);
        const missing = listOf(given[key]).filter((entry) => !texts.includes(essence(entry)));
        bench.require(missing.length === 0, `${key} of prevResult is not passed on: ${JSON.stringify(missing)}`);
      }
    },
  };
}

/** An entry without its index, which earlier interfaces may shift, and without the order of its keys. */
function essence(entry: unknown): string {
  if (!isObject(entry)) return JSON.stringify(entry);
  const kept = Object.entries(entry).filter(([key]) => key !== 'interface');
  return JSON.stringify(kept.sort(([a], [b]) => (a < b ? -1 : 1)));
}

/** Verbs that a version does not have. A plugin of an older release knows no such command, and fails. */
function refusals(version: Version, { versions }: Occasion): readonly Case[] {
  const level: Level = 'MUST';
  return (['CHECK', 'GC', 'STATUS'] as const)
    .filter((verb) => !isAtLeast(version, SINCE[verb]))
    .map((verb) => ({
      id: `${verb.toLowerCase()}.too-old.${version}`,
      section: '5 Error',
      level,
      title: `${verb} is refused with code 1: it came with ${SINCE[verb]}`,
      ask: async (bench) => {
        const codes = versions.some((listed) => isAtLeast(listed, SINCE[verb])) ? [1] : [1, 4];
        const pod = bench.pod();
        bench.expectError(verb, await bench.call(verb, { pod, version }), { codes });
      },
    }));
}
