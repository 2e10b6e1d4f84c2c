import type { Difference } from '@podwire/proto/podwire/dataplane/v1/pod';
import type { Attachment } from '@podwire/shared/attachment/attachment';

import type { Table } from '../output/report.js';
import { attachmentText } from './attachment-of.js';

/** What was found of one pod. */
export interface FoundDifferences {
  readonly attachment: Attachment;
  /** Undefined where the dataplane refused to look. */
  readonly answer: { readonly differences: readonly Difference[]; readonly moreDifferences: number } | undefined;
  readonly fault: string | undefined;
}

export function differenceTable(pods: readonly FoundDifferences[], none: string): Table {
  return {
    kind: 'table',
    columns: ['OBJECT', 'WANTED', 'ACTUAL', 'ATTACHMENT'],
    rows: pods.flatMap(({ attachment, answer, fault }) => {
      const name = attachmentText(attachment);
      if (!answer) return [[fault ?? '', '', '', name]];
      const { differences, moreDifferences: more } = answer;
      return [
        ...differences.map(({ object, wanted, actual }) => [object, wanted, actual, name]),
        ...(more > 0 ? [[`${more} more differences`, '', '', name]] : []),
      ];
    }),
    none,
  };
}
