import type { AddressInUse } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { formatCount } from '@podwire/shared/words/format-count';

import { DONE, FAILED, type Report } from '../output/report.js';
import { attachmentText } from '../output/words.js';

/** The addresses that a forced release kept. */
interface Kept {
  /** The first of them. */
  readonly kept: readonly AddressInUse[];
  readonly keptAddresses: bigint;
}

/** Lists the addresses that a release kept, after what it did. */
export function keptReport({ kept, keptAddresses }: Kept): Required<Pick<Report, 'sections' | 'exitCode'>> {
  if (keptAddresses === 0n) return { sections: [], exitCode: DONE };
  const table = {
    kind: 'table' as const,
    title: `kept: pods of nodes that run have ${formatCount(keptAddresses, 'address', 'addresses')}`,
    columns: ['ADDRESS', 'NODE', 'POD'],
    rows: kept.map(({ address, nodeName, pod, attachment }) => [
      ...[address, nodeName],
      pod ? `${pod.namespace}/${pod.name}` : attachmentText(attachment),
    ]),
    none: '',
  };
  return { sections: [table], exitCode: FAILED };
}
