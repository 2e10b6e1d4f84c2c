import type { Tenure } from '@podwire/proto/podwire/ipam/v1/history';

import type { Table } from '../output/report.js';
import { lengthOfTime, moment, podOf } from '../output/words.js';

/** What is known of a holder, held or past. */
export interface Holding {
  readonly handleId: string;
  readonly attributes: Readonly<Record<string, string>>;
  readonly sequenceNumber: bigint;
  /** What a second owner says of itself; of those that hold an address. */
  readonly alternateAttributes?: Readonly<Record<string, string>>;
}

/** Attributes that have a line of their own. */
const KNOWN = ['node', 'namespace', 'pod', 'network', 'interface', 'timestamp'];

/** Who holds an address, line by line. */
export function holderFields({
  handleId,
  attributes,
  alternateAttributes = {},
  sequenceNumber,
}: Holding): (readonly [string, string])[] {
  const { node = '', interface: interfaceName = '', network = '' } = attributes;
  const others = Object.entries(attributes).filter(([key]) => !KNOWN.includes(key));
  return [
    ['Pod', podOf(attributes)],
    ['Node', node],
    ['Network', network],
    ['Interface', interfaceName],
    ['Handle', handleId],
    ['Sequence', String(sequenceNumber)],
    ['Also', pairs(others)],
    ['Second owner', pairs(Object.entries(alternateAttributes))],
  ];
}

function pairs(entries: readonly (readonly [string, string])[]): string {
  return entries.map(([key, value]) => `${key}=${value}`).join(', ');
}

/**
 * Who held an address when, newest first.
 * @param first - what the first column tells: a pod where all are of one address, else the address
 */
export function tenureTable(tenures: readonly Tenure[], nowMs: number, first: 'pod' | 'address' = 'pod'): Table {
  return {
    kind: 'table',
    columns: [first.toUpperCase(), 'NODE', 'FROM', 'UNTIL', 'FOR', { right: 'SEQUENCE' }, 'HANDLE'],
    rows: tenures.map(({ address, attributes, allocateTime, releaseTime, sequenceNumber, handleId }) => {
      const endMs = releaseTime?.getTime() ?? nowMs;
      const held = allocateTime === undefined ? '' : lengthOfTime(endMs - allocateTime.getTime());
      const times = [moment(allocateTime), moment(releaseTime), held];
      const name = first === 'pod' ? podOf(attributes) : address;
      return [name, attributes.node ?? '', ...times, String(sequenceNumber), handleId];
    }),
    none: 'Nobody.',
  };
}
