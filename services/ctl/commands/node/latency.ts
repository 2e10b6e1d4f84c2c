import { timeByPhase, PHASES, type Interval, type Phase } from '@podwire/shared/telemetry/phases';

import type { Command } from '../../clients/plugin-socket.js';
import { wholeNumber } from '../../command-line/forms.js';
import { ON_NODE } from '../../command-line/options.js';
import { option, type Verb } from '../../command-line/verb.js';
import type { Report, Table } from '../../output/report.js';
import { percent } from '../../output/words.js';

const SLOWEST = option(
  '--slowest',
  wholeNumber('NUMBER', { min: 0, max: 100 }),
  'how many of the slowest ADDs are listed (5)',
);
const SLOWEST_COUNT = 5;

/** Shares of the commands that take at most the listed time. */
const RANKS = { p50: 0.5, p90: 0.9, p99: 0.99 } as const;
type Rank = keyof typeof RANKS;
const RANK_NAMES = ['p50', 'p90', 'p99'] as const satisfies readonly Rank[];

export const latency: Verb = {
  name: 'latency',
  about: 'on a node: how long pods’ ADDs and DELs took, by phase, and the slowest ADDs',
  details:
    'Of the last 500 commands. The phases of a command add up to its time: see "Slow pods" in services/node/README.md.\n' +
    'A percentile covers one phase alone, so the percentiles of the phases do not add up.',
  options: [ON_NODE, SLOWEST],
  examples: ['latency', 'latency --slowest 20', 'latency -o json'],
  run: async (input, { plugin }) => {
    const { node, commands } = await (await plugin()).commands();
    const adds = commands.filter(({ command }) => command === 'ADD');
    const slowest = adds.toSorted((a, b) => b.durationMs - a.durationMs).slice(0, input.get(SLOWEST) ?? SLOWEST_COUNT);
    return {
      sections: [commandTable(node, commands), phaseTable(adds), slowestTable(slowest)],
      hints: slowest.length > 0 ? ['one pod in detail: podwirectl trace NAMESPACE/POD'] : [],
      data: () => latencyData(node, commands, slowest),
    };
  },
};

/**
 * The value that a share of the values does not exceed, by the nearest rank.
 * @param share - above 0, at most 1
 * @returns undefined where there are no values
 */
export function percentile(values: readonly number[], share: number): number | undefined {
  const sorted = values.toSorted((a, b) => a - b);
  return nearestRank(sorted, share);
}

/** The member at a share, above 0 and at most 1, of an ascending list. */
export function nearestRank<Member>(sorted: readonly Member[], share: number): Member | undefined {
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)];
}

/** Milliseconds of a command by phase. Intervals of phases that this release does not know count as the plugin's. */
export function phasesOf({ intervals, durationMs }: Pick<Command, 'intervals' | 'durationMs'>): Map<Phase, number> {
  const known = intervals.flatMap((interval): Interval[] => {
    const phase = PHASES.find((name) => name === interval.phase);
    return phase ? [{ ...interval, phase }] : [];
  });
  return timeByPhase(known, durationMs);
}

const isSuccess = ({ result }: Command): boolean => result === 'success';

/** Milliseconds with three significant figures. */
export function msText(ms: number | undefined): string {
  if (ms === undefined) return '-';
  return ms < 10 ? ms.toFixed(2) : ms < 100 ? ms.toFixed(1) : ms.toFixed(0);
}

const ranked = (values: readonly number[]): string[] =>
  [...RANK_NAMES.map((name) => percentile(values, RANKS[name])), percentile(values, 1)].map(msText);

function commandTable(node: string, commands: readonly Command[]): Table {
  const names = ['ADD', 'DEL', 'CHECK', 'GC'].filter((name) => commands.some(({ command }) => command === name));
  return {
    kind: 'table',
    title: `commands of ${node}, in milliseconds`,
    columns: ['COMMAND', ...['COUNT', 'FAILED', 'P50', 'P90', 'P99', 'MAX'].map((right) => ({ right }))],
    rows: names.map((name) => {
      const all = commands.filter(({ command }) => command === name);
      const failed = all.filter((command) => !isSuccess(command)).length;
      return [name, String(all.length), String(failed), ...ranked(all.map(({ durationMs }) => durationMs))];
    }),
    none: 'commands: none',
  };
}

function phaseTable(adds: readonly Command[]): Table {
  const divided = adds.filter(isSuccess).map(phasesOf);
  const sum = (phase: Phase): number => divided.reduce((total, phases) => total + (phases.get(phase) ?? 0), 0);
  const present = PHASES.filter((phase) => divided.some((phases) => phases.has(phase)));
  const total = present.reduce((all, phase) => all + sum(phase), 0);
  return {
    kind: 'table',
    title: 'successful ADDs by phase, in milliseconds',
    columns: ['PHASE', ...['SHARE', 'P50', 'P90', 'P99', 'MAX'].map((right) => ({ right }))],
    rows: present.map((phase) => {
      const values = divided.map((phases) => phases.get(phase) ?? 0);
      return [phase, percent(sum(phase), total), ...ranked(values)];
    }),
    none: 'successful ADDs: none',
  };
}

export function subjectOf({ pod, containerId }: Command): string {
  return pod ? `${pod.namespace}/${pod.name}` : (containerId ?? '');
}

function slowestTable(slowest: readonly Command[]): Table {
  return {
    kind: 'table',
    title: 'slowest ADDs',
    columns: ['STARTED', { right: 'MS' }, 'MOST IN', 'RESULT', 'POD', 'TRACE'],
    rows: slowest.map((command) => [
      command.startedAt,
      msText(command.durationMs),
      longestPhase(command),
      command.result,
      subjectOf(command),
      command.traceId ?? '',
    ]),
    none: 'ADDs: none',
  };
}

function longestPhase(command: Command): string {
  const [longest] = [...phasesOf(command)].sort(([, a], [, b]) => b - a);
  return longest ? `${longest[0]} ${msText(longest[1])}` : '';
}

function latencyData(
  node: string,
  commands: readonly Command[],
  slowest: readonly Command[],
): ReturnType<Report['data']> {
  const ranks = (values: readonly number[]) =>
    Object.fromEntries(RANK_NAMES.map((name) => [name, percentile(values, RANKS[name]) ?? null]));
  const adds = commands.filter(({ command }) => command === 'ADD').filter(isSuccess);
  const divided = adds.map(phasesOf);
  const present = PHASES.filter((phase) => divided.some((phases) => phases.has(phase)));
  return {
    node,
    count: commands.length,
    addMs: ranks(adds.map(({ durationMs }) => durationMs)),
    addPhasesMs: Object.fromEntries(
      present.map((phase) => [phase, ranks(divided.map((each) => each.get(phase) ?? 0))]),
    ),
    slowestAdds: slowest.map((command) => ({
      startedAt: command.startedAt,
      durationMs: command.durationMs,
      result: command.result,
      pod: subjectOf(command),
      traceId: command.traceId,
      phasesMs: Object.fromEntries(phasesOf(command)),
    })),
  };
}
