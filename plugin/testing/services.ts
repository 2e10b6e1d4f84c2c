// podwire-dataplane as the contract describes it, with memory in place of the kernel.
import {
  PodServiceService,
  type CollectGarbageRequest,
  type PodNetwork,
} from '@podwire/proto/podwire/dataplane/v1/pod';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { HOST_MAC } from '@podwire/shared/attachment/names';
import { Failure, violationsFailure } from '@podwire/shared/failure/failure';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import { checked, type Script } from '../clients/script.fixture.js';

/** The dataplane with a list of wires as its kernel. */
export class FakeDataplane {
  readonly #wires = new Map<string, PodNetwork>();
  readonly #foreign = new Set<string>();
  readonly #stubborn = new Set<string>();
  readonly #drift: { object: string; wanted: string; actual: string }[] = [];

  /** Puts an interface into a pod that is not Podwire's. */
  addForeignInterface(netns: string, name: string): void {
    this.#foreign.add(`${netns} ${name}`);
  }

  /** Makes the kernel differ from what is wanted. */
  addDrift(difference: { object: string; wanted: string; actual: string }): void {
    this.#drift.push(difference);
  }

  /** The wires, each as `host-interface -> interface@netns mac addresses mtu forwarding`. */
  toString(): string {
    const lines = [...this.#wires.values()].map((pod) => {
      const { hostInterfaceName: host, netns, macAddress, addresses, mtuBytes, ipForwarding } = pod;
      const name = checked(pod.attachment).interfaceName;
      return `${host} -> ${name}@${netns} ${macAddress} ${addresses.join(',')} mtu ${mtuBytes} forwarding ${ipForwarding}`;
    });
    return lines.join('\n');
  }

  services(unary: Unary, script: Script): RpcService[] {
    const { attachPod, detachPod, checkPod, listPods, collectGarbage } = PodServiceService;
    const service = {
      name: 'podwire.dataplane.v1.PodService',
      definition: PodServiceService,
      implementation: {
        attachPod: unary(
          attachPod,
          script.play('AttachPod', ({ pod }) => this.#attach(pod)),
        ),
        detachPod: unary(
          detachPod,
          script.play('DetachPod', ({ attachment }) => this.#detach(checked(attachment))),
        ),
        checkPod: unary(
          checkPod,
          script.play('CheckPod', ({ pod }) => this.#check(pod)),
        ),
        listPods: unary(
          listPods,
          script.play('ListPods', ({ pageToken }) => this.#list(pageToken)),
        ),
        collectGarbage: unary(
          collectGarbage,
          script.play('CollectGarbage', (request) => this.#collect(request)),
        ),
      },
    };
    return [service];
  }

  /** Makes the kernel keep an interface whatever is asked. */
  makeStubborn(attachment: Attachment): void {
    this.#stubborn.add(formatAttachment(attachment));
  }

  #collect({ validAttachments, network }: CollectGarbageRequest) {
    const valid = new Set((validAttachments?.attachments ?? []).map((each) => formatAttachment(checked(each))));
    const garbage = [...this.#wires.keys()].filter((key) => key.startsWith(`${network}/`) && !valid.has(key));
    const parts = garbage.map((key) => ({ key, attachment: this.#wires.get(key)?.attachment }));
    const removed = parts.filter(({ key }) => !this.#stubborn.has(key));
    for (const { key } of removed) this.#wires.delete(key);
    const failures = parts.filter(({ key }) => this.#stubborn.has(key));
    return {
      removed: removed.flatMap(({ attachment }) => attachment ?? []),
      failures: failures.map(({ attachment }) => ({ attachment, code: 'KERNEL_REFUSED', message: 'link del: EBUSY' })),
    };
  }

  #attach(pod: PodNetwork | undefined) {
    const wanted = checkedPod(pod);
    const attachment = checked(wanted.attachment);
    const key = formatAttachment(attachment);
    if (this.#foreign.has(`${wanted.netns} ${attachment.interfaceName}`)) {
      throw new Failure('INTERFACE_EXISTS', `${wanted.netns} has an interface ${attachment.interfaceName} already`);
    }
    const changes = this.#wires.has(key) ? 0 : 1;
    this.#wires.set(key, wanted);
    const mtuBytes = wanted.mtuBytes || 1500;
    return {
      hostInterface: { name: wanted.hostInterfaceName, index: 7, macAddress: HOST_MAC, mtuBytes },
      podInterface: { name: attachment.interfaceName, index: 2, macAddress: wanted.macAddress, mtuBytes },
      changes,
    };
  }

  #detach(attachment: Attachment) {
    return { removed: this.#wires.delete(formatAttachment(attachment)) };
  }

  #check(pod: PodNetwork | undefined) {
    const wanted = checkedPod(pod);
    const wire = this.#wires.get(formatAttachment(checked(wanted.attachment)));
    const link = `pod link ${checked(wanted.attachment).interfaceName}`;
    if (!wire) return { differences: [{ object: link, wanted: 'present', actual: 'missing' }], moreDifferences: 0 };
    return { differences: [...this.#drift], moreDifferences: 0 };
  }

  /** One attachment a page, so that readers have to turn it. */
  #list(pageToken: string) {
    const index = Number(pageToken);
    const pods = [...this.#wires.values()].map(({ attachment, addresses }) => ({
      attachment,
      addresses,
      hostInterface: undefined,
      up: true,
    }));
    return { pods: pods.slice(index, index + 1), nextPageToken: index + 1 < pods.length ? String(index + 1) : '' };
  }
}

function checkedPod(pod: PodNetwork | undefined): PodNetwork {
  if (!pod) throw violationsFailure('INVALID_REQUEST', 'request refused', [{ field: 'pod', reason: 'is missing' }]);
  const violations = [
    ...(pod.netns.startsWith('/') ? [] : [{ field: 'pod.netns', reason: 'is not an absolute path' }]),
    ...(pod.addresses.length > 0 ? [] : [{ field: 'pod.addresses', reason: 'is empty' }]),
    ...(pod.hostInterfaceName === '' ? [{ field: 'pod.host_interface_name', reason: 'is empty' }] : []),
  ];
  if (violations.length > 0) throw violationsFailure('INVALID_REQUEST', 'request refused', violations);
  return pod;
}
