import { compareTexts } from '@podwire/shared/words/order';
import { PHASES, timeByPhase, type Interval, type Phase } from '@podwire/shared/telemetry/phases';

import type { Command, Commands } from '../../clients/plugin-socket.js';
import type { Add, AddSummary, FailedAdds } from '../../page/data.js';

/** Shares of the commands that take at most the listed time. */
export const RANKS = { p50: 0.5, p90: 0.9, p99: 0.99, max: 1 } as const;

/** Members of each list of ADDs. */
export const LISTED_COUNT = 5;

interface NodeCommand extends Command {
  readonly node: string;
}

/** Percentiles and lists of the recent ADDs of nodes. There are thousands: phases are counted of the listed ones only. */
export function summarizeAdds(nodes: readonly Commands[]): AddSummary {
  const adds = nodes
    .flatMap(({ node, commands }) =>
      commands.flatMap((each): NodeCommand[] => (each.command === 'ADD' ? [{ ...each, node }] : [])),
    )
    .toSorted((a, b) => compareTexts(b.startedAt, a.startedAt));
  const ascending = bySpeed(adds.filter(({ result }) => result === 'success'));
  const percentiles = Object.entries(RANKS).flatMap(([name, share]) => {
    const add = nearestRank(ascending, share);
    return add ? [{ name, add: addOf(add) }] : [];
  });
  return {
    addCount: adds.length,
    failedCount: adds.length - ascending.length,
    since: adds.at(-1)?.startedAt ?? null,
    phases: PHASES.filter((phase) => percentiles.some(({ add }) => add.phases.some((part) => part.phase === phase))),
    percentiles,
    slowest: ascending.slice(-LISTED_COUNT).reverse().map(addOf),
    failures: failuresOf(adds),
    newest: adds.slice(0, LISTED_COUNT).map(addOf),
  };
}

/** Commands in the order in which {@link nearestRank} takes them: ascending by duration, the earlier one first. */
export function bySpeed<Each extends { readonly durationMs: number; readonly startedAt: string }>(
  commands: readonly Each[],
): Each[] {
  return commands.toSorted((a, b) => a.durationMs - b.durationMs || compareTexts(a.startedAt, b.startedAt));
}

/**
 * The member at a rank of an ascending list: the first that a share of the members does not exceed.
 * @param share - above 0, at most 1
 * @returns undefined where there are no members
 */
export function nearestRank<Member>(ascending: readonly Member[], share: number): Member | undefined {
  return ascending[Math.max(0, Math.ceil(share * ascending.length) - 1)];
}

/** Milliseconds of a command by phase. Intervals of phases that this release does not know count as the plugin's. */
export function phasesOf({ intervals, durationMs }: Pick<Command, 'intervals' | 'durationMs'>): Map<Phase, number> {
  const known = intervals.flatMap((interval): Interval[] => {
    const phase = PHASES.find((name) => name === interval.phase);
    return phase ? [{ ...interval, phase }] : [];
  });
  return timeByPhase(known, durationMs);
}

export function subjectOf({ pod, containerId }: Command): string {
  return pod ? `${pod.namespace}/${pod.name}` : (containerId ?? '');
}

function addOf(command: NodeCommand): Add {
  const { node, startedAt, result, message, durationMs, addresses, containerId, traceId, intervals } = command;
  const times = phasesOf(command);
  return {
    id: `${startedAt}/${containerId ?? ''}`,
    pod: subjectOf(command),
    phases: PHASES.map((phase) => ({ phase, ms: times.get(phase) ?? 0 })).filter(({ ms }) => ms > 0),
    ...{ node, startedAt, result, message, durationMs, addresses, containerId, traceId, intervals },
  };
}

/** Failures with one code, whose messages differ in names, addresses and numbers only, are one group. @param adds - newest first */
function failuresOf(adds: readonly NodeCommand[]): FailedAdds[] {
  const groups = new Map<string, { readonly count: number; readonly newest: NodeCommand }>();
  for (const add of adds.filter(({ result }) => result !== 'success')) {
    const words = (add.message ?? '').match(/"[^"]*"|[^\s"]+/g) ?? [];
    const reason = [add.result, ...words.filter((word) => !/["\d]/.test(word))].join(' ');
    const { count = 0, newest = add } = groups.get(reason) ?? {};
    groups.set(reason, { count: count + 1, newest });
  }
  const frequent = [...groups.values()].toSorted((a, b) => b.count - a.count).slice(0, LISTED_COUNT);
  return frequent.map(({ count, newest }) => ({ count, newest: addOf(newest) }));
}
