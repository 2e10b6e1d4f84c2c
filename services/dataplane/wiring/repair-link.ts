import type { Repair } from './difference.js';
import type { WantedEnd } from './network.js';
import type { ObservedLink } from './observed.js';
import type { LinkChange, Side, Step } from './step.js';

interface LinkPair {
  readonly side: Side;
  readonly wanted: WantedEnd;
  readonly link: ObservedLink | undefined;
}

/** The step that corrects a link's attributes, if any differs. */
export function repairLink({ side, wanted, link }: LinkPair): Repair[] {
  if (!link) return [];
  const attributes = linkAttributes(wanted, link).filter((each) => each.wanted !== each.actual);
  if (attributes.length === 0) return [];
  const join = (pick: (attribute: LinkAttribute) => LinkChange): LinkChange => {
    const joined: LinkChange = {};
    for (const attribute of attributes) Object.assign(joined, pick(attribute));
    return joined;
  };
  const step: Step = {
    type: 'link-set',
    side,
    name: link.name,
    change: join((attribute) => attribute.change),
    previous: join((attribute) => attribute.previous),
  };
  const object = (name: string) => `${side} link ${link.name}${name === '' ? '' : ` ${name}`}`;
  const differences = attributes.map((each) => ({
    object: object(each.name),
    wanted: each.wanted,
    actual: each.actual,
  }));
  return [{ step, differences }];
}

interface LinkAttribute {
  readonly name: string;
  /** Wanted and observed value as text. */
  readonly wanted: string;
  readonly actual: string;
  readonly change: LinkChange;
  readonly previous: LinkChange;
}

function linkAttributes({ link: wanted, alias }: WantedEnd, link: ObservedLink): LinkAttribute[] {
  const { mac, mtuBytes, txQueueLength } = wanted;
  const state = (up: boolean) => (up ? 'up' : 'down');
  return [
    {
      name: 'address',
      wanted: mac,
      actual: link.mac ?? 'none',
      change: { mac },
      previous: link.mac === null ? {} : { mac: link.mac },
    },
    {
      name: 'mtu',
      wanted: String(mtuBytes),
      actual: String(link.mtuBytes),
      change: { mtuBytes },
      previous: { mtuBytes: link.mtuBytes },
    },
    ...(txQueueLength === undefined
      ? []
      : [
          {
            name: 'txqueuelen',
            wanted: String(txQueueLength),
            actual: String(link.txQueueLength),
            change: { txQueueLength },
            previous: { txQueueLength: link.txQueueLength },
          },
        ]),
    ...(alias === undefined
      ? []
      : [
          {
            name: 'alias',
            wanted: alias,
            actual: link.alias ?? '',
            change: { alias },
            previous: { alias: link.alias ?? '' },
          },
        ]),
    { name: '', wanted: state(true), actual: state(link.up), change: { up: true }, previous: { up: link.up } },
  ];
}
