import type { AllocatedAddress } from '@podwire/shared/attachment/allocation';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal } from '@podwire/shared/failure/signal';

import type {
  Dataplane,
  LeasedAddress,
  NodeAddresses,
  NodeEndpoint,
  PluginAttachments,
  RecordedPod,
  TakenLeases,
} from '../clients/clients.js';

/** The node's leases and records in memory. Without leases or {@link recording}, the node has none, as one whose records are lost. */
export class FakeNodeAddresses implements NodeAddresses {
  /** Unbound, in the order of use. */
  readonly leases: LeasedAddress[] = [];
  readonly records = new Map<string, RecordedPod>();
  /** Addresses of attachments that ended, in order. */
  readonly returnedAddresses: AllocatedAddress[] = [];
  /** Whether returns wait for podwire-ipam. */
  isDelayed = false;
  refusal: Failure | undefined;
  /** Attachments of the plugin that started last. */
  plugin: PluginAttachments | undefined;

  start(plugin: PluginAttachments): void {
    this.plugin = plugin;
  }

  requireName(): Promise<void> {
    return this.refusal ? Promise.reject(this.refusal) : Promise.resolve();
  }

  take(attachment: Attachment): Promise<TakenLeases> {
    if (this.records.has(formatAttachment(attachment))) return Promise.resolve({ reason: 'known' });
    const lease = this.leases.shift();
    return Promise.resolve(lease ? { leases: [lease] } : { reason: 'off' });
  }

  giveBack(leases: readonly LeasedAddress[]): void {
    this.leases.push(...leases);
  }

  hasLeases(): boolean {
    return this.leases.length > 0;
  }

  recorded(attachment: Attachment): RecordedPod | undefined {
    return this.records.get(formatAttachment(attachment));
  }

  /** Addresses of other attachments. */
  readonly heldByOtherPods = new Set<string>();

  isHeldByOtherPod(_: Attachment, address: string): boolean {
    return this.heldByOtherPods.has(address);
  }

  returned(attachment: Attachment, _: readonly string[], signal: AbortSignal): Promise<void> {
    if (!this.isDelayed) {
      this.#return(formatAttachment(attachment));
      return Promise.resolve();
    }
    return new Promise((_, reject) => signal.addEventListener('abort', () => reject(failureOfSignal(signal))));
  }

  /** Allocations that nothing on the node has, or why they are not known. */
  unknown: readonly NodeEndpoint[] | Failure = [];

  unknownAllocations(): Promise<readonly NodeEndpoint[]> {
    return this.unknown instanceof Failure ? Promise.reject(this.unknown) : Promise.resolve(this.unknown);
  }

  /** A dataplane whose successful calls are recorded. */
  recording(dataplane: Dataplane): Dataplane {
    return {
      ...dataplane,
      attachPod: async (pod, limits, allocation) => {
        const wire = await dataplane.attachPod(pod, limits, allocation);
        const record = { allocation, netnsInode: 7n, isDetaching: false, isDead: false };
        this.records.set(formatAttachment(pod.attachment), record);
        return wire;
      },
      detachPod: async (detachment, limits) => {
        const key = formatAttachment(detachment.attachment);
        const record = this.records.get(key);
        if (record) this.records.set(key, { ...record, isDetaching: true });
        await dataplane.detachPod(detachment, limits);
        if (!record?.allocation) this.records.delete(key);
        else this.records.set(key, { ...record, isDetaching: false, isDead: true });
        if (!this.isDelayed) this.#return(key);
      },
    };
  }

  #return(key: string): void {
    this.returnedAddresses.push(...(this.records.get(key)?.allocation?.addresses ?? []));
    this.records.delete(key);
  }
}
