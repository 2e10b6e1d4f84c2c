import type { AddRequest, DelRequest } from '@podwire/proto/calico/cni/cnibackend';
import { PodNetwork as PodNetworkMessage } from '@podwire/proto/podwire/dataplane/v1/pod';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import { statusOfError } from '@podwire/shared/failure/status';
import { familyBits, formatAddress, parseAddress, type Family } from '@podwire/shared/net/address';
import { splitCidr } from '@podwire/shared/net/prefix';
import { checked, Checks } from '@podwire/shared/rpc/checks';

import type { PodNetwork } from '../plan/pod-network.js';
import { calicoAttachment } from './calico-attachment.js';
import { readAttachment, readPodNetwork } from './pods-rpc.js';

/** Messages of Calico's contract to values, and failures to the text of its replies. */

const HARDWARE_ADDRESS = 'cni.projectcalico.org/hwAddr';

/** @throws Failure INVALID_REQUEST that lists everything that is wrong, in the names of Calico's contract */
export function readAdd(request: AddRequest): PodNetwork {
  const attachment = calicoAttachment(request);
  const addresses = request.containerIps.map(({ address }) => fullLength(address));
  const families = addresses.map(familyOf);
  // The plugin asks for the default routes of both families, whichever the container has.
  const isWanted = (cidr: string) => familyOf(cidr) === undefined || families.includes(familyOf(cidr));
  const routes = [...new Set(request.containerRoutes)].filter(isWanted);
  const pod = PodNetworkMessage.fromPartial({
    attachment,
    netns: request.netns,
    hostInterfaceName: request.desiredHostInterfaceName || hostInterfaceName(attachment),
    macAddress: request.workload?.annotations[HARDWARE_ADDRESS] ?? podMac(attachment),
    addresses,
    routes,
    mtuBytes: request.settings?.mtu ?? 0,
    ipForwarding: request.settings?.allowIpForwarding ?? false,
  });
  const places = routes.map((route) => request.containerRoutes.indexOf(route));
  return inTheirNames('Add', places, (checks) => readPodNetwork(pod, checks));
}

/** @throws Failure INVALID_REQUEST */
export function readDel(request: DelRequest): Attachment {
  const attachment = calicoAttachment(request);
  return inTheirNames('Del', [], (check) => readAttachment(attachment, { at: 'pod.attachment', check }));
}

/** What the plugin shows of whatever went wrong: the code, and the reason; of a defect nothing that is not meant for it. */
export function errorMessage(error: unknown): string {
  const code = error instanceof Failure ? error.code : 'INTERNAL';
  return `${code}: ${statusOfError(error).details}`;
}

/** An address with the full length, whatever length it came with; what is no address as it is, to be refused. */
function fullLength(text: string): string {
  const address = splitCidr(text)?.address ?? parseAddress(text);
  return address ? `${formatAddress(address)}/${familyBits(address.family)}` : text;
}

function familyOf(cidr: string): Family | undefined {
  return splitCidr(cidr)?.address.family;
}

/** Fields of a pod's message, each with the one of Calico's contract that it was made from. */
const FIELDS: readonly (readonly [RegExp, string])[] = [
  [/^pod\.attachment\.interface_name$/, 'interface_name'],
  [/^pod\.netns$/, 'netns'],
  [/^pod\.host_interface_name$/, 'desired_host_interface_name'],
  [/^pod\.mac_address$/, `workload.annotations[${HARDWARE_ADDRESS}]`],
  [/^pod\.mtu_bytes$/, 'settings.mtu'],
  [/^pod\.addresses$/, 'container_ips'],
  [/^pod\.addresses\[(\d+)\]$/, 'container_ips[$1].address'],
];

function inTheirNames<Value>(method: string, routePlaces: readonly number[], read: (checks: Checks) => Value): Value {
  return checked(method, (checks) => {
    const renaming = new RenamedChecks(checks, routePlaces);
    return read(renaming);
  });
}

/** Notes what is wrong under the names of Calico's contract. */
class RenamedChecks extends Checks {
  readonly #checks: Checks;
  readonly #routePlaces: readonly number[];

  constructor(checks: Checks, routePlaces: readonly number[]) {
    super();
    this.#checks = checks;
    this.#routePlaces = routePlaces;
  }

  override check(field: string, reason: string | undefined): void {
    this.#checks.check(this.#rename(field), reason);
  }

  #rename(field: string): string {
    const route = /^pod\.routes\[(\d+)\]$/.exec(field);
    if (route) return `container_routes[${this.#routePlaces[Number(route[1])] ?? route[1]}]`;
    const known = FIELDS.find(([pattern]) => pattern.test(field));
    return known ? field.replace(...known) : field;
  }
}
