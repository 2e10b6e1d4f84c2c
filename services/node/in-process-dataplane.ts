import type { GarbageCollector } from '@podwire/dataplane/pods/garbage';
import { addressesOf } from '@podwire/dataplane/pods/host-links';
import { checkedNetwork, readDetachment } from '@podwire/dataplane/pods/pods-rpc';
import type { PodWiring } from '@podwire/dataplane/pods/pods';
import type { Dataplane } from '@podwire/plugin/clients/clients';
import { DATAPLANE_CALLS, type LocalCalls } from '@podwire/plugin/clients/local-calls';
import { hostInterfaceName } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';

/** The parts of the running dataplane that CNI commands use. */
export interface CalledParts {
  readonly dataplane: Pick<PodWiring, 'attach' | 'detach' | 'check' | 'find' | 'list'>;
  readonly garbage: Pick<GarbageCollector, 'collect'>;
  readonly isServing: () => boolean;
}

const { attachPod, detachPod, checkPod, isAttached, collectGarbage, wires } = DATAPLANE_CALLS;

/**
 * The dataplane of this process, as CNI commands call it: with the checks of its gRPC methods. After a timeout or an abort, the
 * rollback of the request continues under the attachment's lock.
 */
export function inProcessDataplane({ dataplane, garbage, isServing }: CalledParts, calls: LocalCalls): Dataplane {
  return {
    isServing,
    attachPod: (network, limits, allocation) =>
      calls.call(attachPod, limits, async (signal) =>
        dataplane.attach(checkedNetwork(attachPod.method, network), signal, allocation),
      ),
    async detachPod({ attachment, netns }, limits) {
      const detachment = { attachment, netns, hostInterfaceName: hostInterfaceName(attachment) };
      try {
        await calls.call(detachPod, limits, async (signal) => dataplane.detach(readDetachment(detachment), signal));
      } catch (failure) {
        // The interface of that name belongs to another attachment, so this one is detached.
        if (!(failure instanceof Failure && failure.code === 'HOST_INTERFACE_TAKEN')) throw failure;
      }
    },
    async checkPod(network, limits) {
      const [first] = await calls.call(checkPod, limits, async (signal) =>
        dataplane.check(checkedNetwork(checkPod.method, network), signal),
      );
      return first;
    },
    isAttached: (attachment, limits) =>
      calls.call(isAttached, limits, async () => (await dataplane.find(attachment)) !== undefined),
    async collectGarbage(request, limits) {
      const { failed } = await calls.call(collectGarbage, limits, (signal) => garbage.collect(request, signal));
      return failed.map(({ attachment, failure: { message } }) => ({ attachment, message }));
    },
    async wires(limits) {
      const links = await calls.call(wires, limits, () => dataplane.list());
      return links.map((link) => ({ attachment: link.attachment, addresses: addressesOf(link) }));
    },
  };
}
