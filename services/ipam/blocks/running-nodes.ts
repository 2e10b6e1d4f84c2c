import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';
import { compareTexts } from '@podwire/shared/words/order';

import { attachmentOf, holderOf, type AllocationAttributes } from '../records/attributes.js';
import type { HeldAddress } from '../records/block.js';
import { isLease } from '../records/lease.js';
import { ALIVE_MS } from '../records/session.js';
import type { Change, View } from '../records/view.js';
import { addressOf } from '../records/block.js';

/**
 * An operator's release must not free the address of a pod that runs. Only the pod's node knows, so that what a node
 * that runs may have is kept, unless the node itself returns it.
 */

/**
 * Nodes that were asked for their inventory and did not answer, with the revision of their session at that time. They
 * count as not running until they write their session again.
 */
export type SilentNodes = ReadonlyMap<string, number>;

/** Whether the node runs, as far as podwire-ipam knows: its session changed in the last four minutes. */
export function isAlive(view: View, nodeName: string): boolean {
  return view.session(nodeName) !== undefined && view.sessionAgeMs(nodeName) < ALIVE_MS;
}

/**
 * Refuses a pod of another boot than the owner of the node's name: its machine does not know yet that it lost the
 * name, or the call comes after a reboot.
 * @param bootId - undefined or empty if the caller did not name it
 * @throws Failure NODE_NAME_TAKEN
 */
export function requireBoot(view: View, nodeName: string, bootId: string | undefined): void {
  const session = view.session(nodeName);
  if (!session || !bootId || bootId === session.bootId || !isAlive(view, nodeName)) return;
  const text = `node name "${nodeName}" belongs to boot ${session.bootId}, which runs; boot ${bootId} gets no address: give one of two machines another node name, or wait four minutes after the other one stopped`;
  throw new Failure('NODE_NAME_TAKEN', text, { details: { node: nodeName } });
}

/** Running nodes, as far as one view shows them. */
export class RunningNodes {
  readonly #view: View;
  readonly #silent: SilentNodes | undefined;
  readonly #known = new Map<string, boolean>();

  constructor(view: View, silent?: SilentNodes) {
    this.#view = view;
    this.#silent = silent;
  }

  has(nodeName: string): boolean {
    const known = this.#known.get(nodeName);
    if (known !== undefined) return known;
    const isSilent = this.#silent?.get(nodeName) === (this.#view.session(nodeName)?.revision ?? 0);
    const isRunning = !isSilent && isAlive(this.#view, nodeName);
    this.#known.set(nodeName, isRunning);
    return isRunning;
  }

  /** Whether a pod of a node that runs has the allocation, as far as podwire-ipam knows. */
  havePod(attributes: AllocationAttributes): boolean {
    return attachmentOf(attributes) !== undefined && this.has(holderOf(attributes).nodeName);
  }

  /** Whether {@link havePod} holds, or such a node may give the address to a pod at any time. */
  mayUse(attributes: AllocationAttributes): boolean {
    return (isLease(attributes) || attachmentOf(attributes) !== undefined) && this.has(holderOf(attributes).nodeName);
  }
}

/** Sessions that one step compares. A transaction has room for a few, besides what its releases take. */
const SESSIONS_PER_STEP = 3;

/** The first addresses, limited to few nodes with a session, so that {@link expectSessions} fits in the step. */
export function* ofFewNodes<Held extends Pick<HeldAddress, 'attributes'>>(
  view: View,
  candidates: Iterable<Held>,
): Generator<Held, void, void> {
  const names = new Set<string>();
  for (const held of candidates) {
    const { nodeName } = holderOf(held.attributes);
    if (view.session(nodeName)) names.add(nodeName);
    if (names.size > SESSIONS_PER_STEP) return;
    yield held;
  }
}

/** A node that is heard of before the commit makes the decision run again. */
export function expectSessions(view: View, held: Iterable<Pick<HeldAddress, 'attributes'>>): Change[] {
  const names = new Set([...held].map(({ attributes }) => holderOf(attributes).nodeName));
  return [...names].flatMap((name): Change[] => {
    const value = view.session(name);
    return value ? [{ type: 'expect', record: { kind: 'nodeSession', value } }] : [];
  });
}

/** Maximum number of pods named in a message. */
const NAMED_PODS = 5;

/** @param held - addresses of pods on nodes that run, at least one */
export function inUseFailure(held: readonly HeldAddress[]): Failure {
  const pods = held.map((each) => {
    const { pod, nodeName } = holderOf(each.attributes);
    const attachment = attachmentOf(each.attributes);
    const name = pod ? `${pod.namespace}/${pod.name}` : attachment ? formatAttachment(attachment) : 'a lease';
    return { nodeName, text: `${name} on ${nodeName} (${formatAddress(addressOf(each))})` };
  });
  const nodes = [...new Set(pods.map(({ nodeName }) => nodeName))].sort(compareTexts);
  const texts = pods.map(({ text }) => text).sort(compareTexts);
  const more = texts.length > NAMED_PODS ? ` and ${texts.length - NAMED_PODS} more` : '';
  const run = nodes.length === 1 ? `node ${nodes[0]} runs, and its` : `${nodes.length} nodes run, and their`;
  const text =
    `${run} pods have ${held.length} of the addresses: ${texts.slice(0, NAMED_PODS).join(', ')}${more}; delete the pods, ` +
    'wait until the node was silent for 4 minutes, or repeat with --force (API: force), which asks the node and keeps ' +
    'what its pods have';
  return new Failure('NODE_IN_USE', text, { details: { nodes: nodes.join(','), addresses: String(held.length) } });
}
