import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { formatAddress, type Address } from '@podwire/shared/net/address';

import { allocationOf } from '../addresses/addresses.js';
import { addressesToRelease } from '../addresses/release.js';
import type { View } from '../records/view.js';

/** Subjects of a request that may belong to a node. */
export type Subject =
  | { readonly type: 'node'; readonly nodeName: string }
  | { readonly type: 'attachment'; readonly attachment: Attachment }
  | { readonly type: 'address'; readonly address: Address };

/**
 * The first subject that belongs to another node, for messages. Writes of another replica in the last milliseconds may
 * be missing in the view: an attachment that is new to it belongs to no node yet.
 * @returns undefined when every subject belongs to the node, or to none
 */
export function subjectOfAnotherNode(view: View, subjects: readonly Subject[], nodeName: string): string | undefined {
  for (const subject of subjects) {
    const other = nodesOf(view, subject).find((name) => name !== nodeName);
    if (other !== undefined)
      return `${formatSubject(subject)} belongs to ${other === '' ? 'all nodes' : `node ${JSON.stringify(other)}`}`;
  }
  return undefined;
}

function nodesOf(view: View, subject: Subject): readonly string[] {
  switch (subject.type) {
    case 'node':
      return [subject.nodeName];
    case 'attachment': {
      const { attachment } = subject;
      const held = addressesToRelease(view, attachment).map(({ attributes }) => attributes.owner.node ?? UNKNOWN_NODE);
      const recorded = [...view.endpointsOfContainer(attachment.containerId)].map(({ value }) => value.nodeName);
      return [...held, ...recorded];
    }
    case 'address': {
      const held = allocationOf(view, subject.address);
      return held ? [held.attributes.owner.node ?? UNKNOWN_NODE] : [];
    }
  }
}

/** Name of no node: an allocation without a node, as a service's load balancer has, is not a node's to release. */
const UNKNOWN_NODE = '(none)';

function formatSubject(subject: Subject): string {
  switch (subject.type) {
    case 'node':
      return 'the request';
    case 'attachment':
      return `attachment ${formatAttachment(subject.attachment)}`;
    case 'address':
      return `address ${formatAddress(subject.address)}`;
  }
}
