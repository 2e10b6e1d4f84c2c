import type { ChangeEntry, ObjectChange, RecordedKind } from '../records/history.js';
import type { TimeSpan } from './tenures.js';

/** A request for a page of changes, oldest first. */
export interface ChangeQuery {
  readonly span: TimeSpan;
  /** Undefined for all. */
  readonly kind: RecordedKind | undefined;
  /** Undefined for all objects. */
  readonly nodeName: string | undefined;
  readonly limit: number;
  /** Position of the last change of the previous page; undefined for the first page. */
  readonly after: string | undefined;
}

/** The part of a change that the query selects; undefined if it selects nothing. */
export function selectedPart(query: Omit<ChangeQuery, 'limit' | 'after'>, entry: ChangeEntry): ChangeEntry | undefined {
  const { span, kind, nodeName } = query;
  const isSelected = (object: ObjectChange): boolean =>
    (kind === undefined || object.kind === kind) &&
    (nodeName === undefined || (object.kind === 'node' && object.name === nodeName));
  const objects = entry.atMs >= span.fromMs && entry.atMs < span.untilMs ? entry.objects.filter(isSelected) : [];
  return objects.length > 0 ? { ...entry, objects } : undefined;
}

/** Digits of the time at the begin of a position. */
const TIME_DIGITS = 15;

/** The position before all changes of a moment. */
export function positionOf(timeMs: number): string {
  return String(timeMs).padStart(TIME_DIGITS, '0');
}

/** The moment of a position, in epoch milliseconds; undefined for a text that is none. */
export function timeOfPosition(position: string): number | undefined {
  return /^\d{15}(?:-[\da-f-]{1,40})?$/.test(position) ? Number(position.slice(0, TIME_DIGITS)) : undefined;
}
