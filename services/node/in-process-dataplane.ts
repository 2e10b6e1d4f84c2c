import type { GarbageCollector } from '@podwire/dataplane/pods/garbage';
import { readAttachment, readDetachment, readGarbageRequest, readPodNetwork } from '@podwire/dataplane/pods/pods-rpc';
import type { Dataplane as PodDataplane } from '@podwire/dataplane/pods/pods';
import type { PodNetwork } from '@podwire/dataplane/wiring/network';
import type { ObservedLink } from '@podwire/dataplane/wiring/observed';
import type { Dataplane, DesiredPod, Interface } from '@podwire/plugin/clients/clients';
import { DATAPLANE_CALLS, type LocalCalls } from '@podwire/plugin/clients/local-calls';
import { hostInterfaceName } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import { readChecked } from '@podwire/shared/requests/checks';

/** The parts of the running dataplane that CNI commands use. */
export interface CalledParts {
  readonly dataplane: Pick<PodDataplane, 'attach' | 'detach' | 'check' | 'find' | 'list'>;
  readonly garbage: Pick<GarbageCollector, 'collect'>;
  readonly isServing: () => boolean;
}

/** Fields whose default the dataplane chooses. */
const DEFAULTS = { routes: [], txQueueLength: 0 };

const EVERY_LINK = { limit: Number.POSITIVE_INFINITY, after: '' };

/**
 * The dataplane of this process, as CNI commands call it: with the checks of its gRPC methods. After a timeout or an abort, the
 * rollback of what was asked for continues under the attachment's lock.
 */
export function inProcessDataplane({ dataplane, garbage, isServing }: CalledParts, calls: LocalCalls): Dataplane {
  return {
    isServing,
    async attachPod(desired, limits, allocation) {
      const { host, pod } = await calls.call(DATAPLANE_CALLS.attachPod, limits, async (signal) =>
        dataplane.attach(networkOf(DATAPLANE_CALLS.attachPod, desired), signal, allocation),
      );
      return { hostInterface: interfaceOf(host), podInterface: interfaceOf(pod) };
    },
    async detachPod({ attachment, netns }, limits) {
      const detachment = { attachment, netns, hostInterfaceName: hostInterfaceName(attachment) };
      try {
        await calls.call(DATAPLANE_CALLS.detachPod, limits, async (signal) =>
          dataplane.detach(readDetachment(detachment), signal),
        );
      } catch (failure) {
        // The interface of that name belongs to another attachment, so this one is detached.
        if (!(failure instanceof Failure && failure.code === 'HOST_INTERFACE_TAKEN')) throw failure;
      }
    },
    async checkPod(desired, limits) {
      const [first] = await calls.call(DATAPLANE_CALLS.checkPod, limits, async (signal) =>
        dataplane.check(networkOf(DATAPLANE_CALLS.checkPod, desired), signal),
      );
      return first;
    },
    async isAttached(attachment, limits) {
      const found = await calls.call(DATAPLANE_CALLS.isAttached, limits, async () =>
        dataplane.find(
          readChecked(DATAPLANE_CALLS.isAttached.method, (check) =>
            readAttachment(attachment, { at: 'attachment', check }),
          ),
        ),
      );
      return found !== undefined;
    },
    async collectGarbage({ network, valid }, limits) {
      const request = { network, validAttachments: { attachments: [...valid] } };
      const { failed } = await calls.call(DATAPLANE_CALLS.collectGarbage, limits, async (signal) =>
        garbage.collect(readGarbageRequest(request), signal),
      );
      return failed.map(({ attachment, failure: { message } }) => ({ attachment, message }));
    },
    async wires(limits) {
      const { links } = await calls.call(DATAPLANE_CALLS.wires, limits, () => dataplane.list(EVERY_LINK));
      return links.map(({ attachment, addresses }) => ({
        attachment,
        addresses: addresses.map((cidr) => cidr.replace(/\/\d+$/, '')),
      }));
    },
  };
}

function networkOf(
  { method }: { readonly method: string },
  { addresses, sourcePrefixes, ...pod }: DesiredPod,
): PodNetwork {
  const message = { addresses: [...addresses], sourcePrefixes: [...sourcePrefixes], ...pod, ...DEFAULTS };
  return readChecked(method, (checks) => readPodNetwork(message, checks));
}

function interfaceOf({ name, mac, mtuBytes }: ObservedLink): Interface {
  return { name, macAddress: mac ?? '', mtuBytes };
}
