import type { Bench } from '../bench.js';
import type { Case, Occasion } from '../case.js';
import { chance } from '../machine/chance.js';
import { newest } from './newest.js';

/** The latest time to kill a process, relative to the usual duration of a command. */
const BEYOND = 1.1;

/** The plugin is killed with SIGKILL in the middle of a command, at moments that the seed chooses; DEL then has to clean up. */
export function suddenDeathCases({ seed, kills }: Occasion): readonly Case[] {
  const rest = { section: '2 DEL', level: 'MUST' } as const;
  return [
    {
      ...rest,
      id: 'kill.add',
      title: `DEL leaves nothing of an ADD that was killed, ${kills} times (seed ${seed})`,
      ask: (bench) => killed(bench, 'ADD'),
    },
    {
      ...rest,
      id: 'kill.del',
      title: `DEL leaves nothing of what a killed DEL left, ${kills} times (seed ${seed})`,
      ask: (bench) => killed(bench, 'DEL'),
    },
  ];
}

async function killed(bench: Bench, verb: 'ADD' | 'DEL'): Promise<void> {
  const { kills, seed } = bench.occasion;
  const version = newest(bench);
  const random = chance(seed);
  const usualMs = await usualDuration(bench, verb);
  const before = await bench.holdings();
  for (let round = 0; round < kills && bench.faults.length === 0; round++) {
    const pod = bench.pod();
    if (verb === 'DEL') await bench.add({ pod, version });
    const killAfterMs = random() * usualMs * BEYOND;
    await bench.call(verb, { pod, version, killAfterMs });
    const what = `DEL after ${verb} was killed at ${killAfterMs.toFixed(1)} ms (round ${round})`;
    await bench.del({ pod, version });
    await bench.expectNothingLeft(what, before);
    bench.expectPodEmpty(what, pod);
    bench.removeNamespace(pod);
  }
}

/** The longest of three, and the node after the first containers. */
async function usualDuration(bench: Bench, verb: 'ADD' | 'DEL'): Promise<number> {
  const version = newest(bench);
  let longestMs = 1;
  for (let times = 0; times < 3; times++) {
    const pod = bench.pod();
    const add = await bench.call('ADD', { pod, version });
    bench.expectSuccess('ADD', add);
    const del = await bench.call('DEL', { pod, version });
    bench.expectSuccess('DEL', del);
    longestMs = Math.max(longestMs, verb === 'ADD' ? add.durationMs : del.durationMs);
  }
  return longestMs;
}
