import type { Reply } from './control-reply.js';
import { SESSION_PREFIX } from './sessions.js';

/** How a BGP session is. */
export interface SessionState {
  /** Of BIRD's protocol. */
  readonly name: string;
  /** `Established`, `Connect`, `Active`, `OpenSent`, `OpenConfirm`, `Idle`, …, as BIRD says; `Down` when it was told not to run. */
  readonly state: string;
  readonly isEstablished: boolean;
  /** Since when the session is in this phase, in the node's local time: `2026-11-21 17:56:05`. */
  readonly since: string;
  /** What ended it or keeps it from being established, in BIRD's words; undefined: nothing that BIRD tells. */
  readonly reason: string | undefined;
  /** Routes taken from the neighbour. */
  readonly importedCount: number;
  /** Routes told to the neighbour. */
  readonly exportedCount: number;
}

/** Lists all sessions of Podwire's, to be read by {@link readSessions}. */
export const SHOW_SESSIONS = `show protocols all "${SESSION_PREFIX}*"`;

const TABLE_LINE = 1002;

/** Reads the answer to {@link SHOW_SESSIONS}: for each protocol a line of the table, then its details. */
export function readSessions({ lines }: Reply): SessionState[] {
  const sessions: { readonly heading: string; readonly details: string[] }[] = [];
  for (const { code, text } of lines) {
    if (code === TABLE_LINE) sessions.push({ heading: text, details: [] });
    else sessions.at(-1)?.details.push(text.trim());
  }
  return sessions.flatMap(({ heading, details }) => readSession(heading, details) ?? []);
}

/** `NAME BGP TABLE STATE DATE TIME INFO`, where INFO is `Established`, or a state and why: `Active        Socket: Connection refused`. */
const HEADING = /^(\S+)\s+BGP\s+\S+\s+(\S+)\s+(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\s*(\S*)\s*(.*?)\s*$/;

function readSession(heading: string, details: readonly string[]): SessionState | undefined {
  const [, name, phase, since = '', info = '', rest = ''] = HEADING.exec(heading) ?? [];
  if (!name?.startsWith(SESSION_PREFIX)) return undefined;
  const detail = (label: string) =>
    details
      .find((line) => line.startsWith(label))
      ?.slice(label.length)
      .trim();
  const state = detail('BGP state:') ?? (info === '' ? (phase ?? '') : info);
  const counts = /^(\d+) imported, (?:\d+ filtered, )?(\d+) exported/.exec(detail('Routes:') ?? '');
  const isEstablished = state === 'Established';
  const told = detail('Last error:') ?? rest;
  return {
    name,
    state,
    isEstablished,
    since,
    reason: isEstablished || told === '' ? undefined : told,
    importedCount: Number(counts?.[1] ?? 0),
    exportedCount: Number(counts?.[2] ?? 0),
  };
}
