import { AddReply, CniDataplaneService, type AddRequest, type DelRequest } from '@podwire/proto/calico/cni/cnibackend';
import { PodNetwork as PodNetworkMessage } from '@podwire/proto/podwire/dataplane/v1/pod';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import { statusOfError } from '@podwire/shared/failure/status';
import { familyBits, formatAddress, parseAddress, type Family } from '@podwire/shared/net/address';
import { splitCidr } from '@podwire/shared/net/prefix';
import { readChecked, Checks } from '@podwire/shared/requests/checks';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Handlers, type Unary } from '@podwire/shared/rpc/unary';

import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import { CALICO_NETWORK, calicoAttachment } from './calico-attachment.js';
import type { AttachResult } from './conflicts.js';
import { readAttachment, readPodNetwork } from './pods-rpc.js';
import type { PodWiring } from './pods.js';

/** Messages of Calico's contract to values, and failures to the text of its replies. */

const HARDWARE_ADDRESS = 'cni.projectcalico.org/hwAddr';

/** @throws Failure INVALID_REQUEST that lists every fault, with the field names of Calico's contract */
function readAdd(request: AddRequest): PodNetwork {
  const attachment = calicoAttachment(request);
  const addresses = request.containerIps.map(({ address }) => withFullLength(address));
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
  return readWithCalicoNames('Add', places, (checks) => readPodNetwork(pod, checks));
}

/** @throws Failure INVALID_REQUEST */
function readDel(request: DelRequest): Attachment {
  const attachment = calicoAttachment(request);
  return readWithCalicoNames('Del', [], (check) => readAttachment(attachment, { at: 'pod.attachment', check }));
}

/** The error text for the plugin: code and reason. Internal errors reveal no details. */
function errorMessage(error: unknown): string {
  const code = error instanceof Failure ? error.code : 'INTERNAL';
  return `${code}: ${statusOfError(error).details}`;
}

/**
 * Formats an address with its full prefix length, ignoring the given one. Returns text that is not an address unchanged, for
 * later validation.
 */
function withFullLength(text: string): string {
  const address = splitCidr(text)?.address ?? parseAddress(text);
  return address ? `${formatAddress(address)}/${familyBits(address.family)}` : text;
}

function familyOf(cidr: string): Family | undefined {
  return splitCidr(cidr)?.address.family;
}

/** Maps the fields of a pod's message to fields of Calico's contract. */
const FIELDS: readonly (readonly [RegExp, string])[] = [
  [/^pod\.attachment\.interface_name$/, 'interface_name'],
  [/^pod\.netns$/, 'netns'],
  [/^pod\.host_interface_name$/, 'desired_host_interface_name'],
  [/^pod\.mac_address$/, `workload.annotations[${HARDWARE_ADDRESS}]`],
  [/^pod\.mtu_bytes$/, 'settings.mtu'],
  [/^pod\.addresses$/, 'container_ips'],
  [/^pod\.addresses\[(\d+)\]$/, 'container_ips[$1].address'],
];

function readWithCalicoNames<Value>(
  method: string,
  routePlaces: readonly number[],
  read: (checks: Checks) => Value,
): Value {
  return readChecked(method, (checks) => {
    const renaming = new CalicoFieldChecks(checks, routePlaces);
    return read(renaming);
  });
}

/** Records faults under the field names of Calico's contract. */
class CalicoFieldChecks extends Checks {
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

export function cniAdd({ dataplane, refused: onFailure }: CniDependencies): Handlers<CniDataplaneService>['add'] {
  return async (request, call) => {
    try {
      const network = readAdd(request);
      const { host, pod } = await withTimeout(call.signal, (signal) => attach(dataplane, network, signal));
      return { successful: true, errorMessage: '', hostInterfaceName: host.name, containerMac: pod.mac ?? network.mac };
    } catch (error) {
      onFailure('Add', error);
      return AddReply.fromPartial({ successful: false, errorMessage: errorMessage(error) });
    }
  };
}

/**
 * Calico uses one host interface name for every sandbox of a pod, so the interface of an earlier sandbox may still exist when its
 * Del was lost or is pending. The new sandbox replaces it, as in Calico's own dataplane. Interfaces that this service did not
 * create are kept.
 */
async function attach(dataplane: PodWiring, network: PodNetwork, signal: AbortSignal): Promise<AttachResult> {
  try {
    return await dataplane.attach(network, signal);
  } catch (error) {
    if (!(error instanceof Failure) || error.code !== 'HOST_INTERFACE_TAKEN') throw error;
    const { hostInterfaceName } = network;
    const links = await dataplane.list();
    const earlier = links.find(({ link }) => link.name === hostInterfaceName)?.attachment;
    if (earlier?.network !== CALICO_NETWORK) throw error;
    await dataplane.detach({ attachment: earlier, hostInterfaceName }, signal);
    return dataplane.attach(network, signal);
  }
}

/** Dependencies of the methods of Calico's contract. */
export interface CniDependencies {
  readonly dataplane: PodWiring;
  /** Called for each failure, because gRPC sees the reply that carries it as a success. */
  readonly refused: (method: 'Add' | 'Del', error: unknown) => void;
}

export function cniDel({ dataplane, refused }: CniDependencies): Handlers<CniDataplaneService>['del'] {
  return async (request, call) => {
    try {
      const attachment = readDel(request);
      // A namespace without a path no longer exists, and cannot be identified.
      const { netns } = request;
      const detaching = { dataplane, attachment, netns };
      if (netns !== '') await withTimeout(call.signal, (signal) => detach(detaching, signal));
      return { successful: true, errorMessage: '' };
    } catch (error) {
      refused('Del', error);
      return { successful: false, errorMessage: errorMessage(error) };
    }
  };
}

interface DetachOptions {
  readonly dataplane: PodWiring;
  readonly attachment: Attachment;
  readonly netns: string;
}

/** Finds the host end by the name that Add received: from the records, or from the link's alias. */
async function detach({ dataplane, attachment, netns }: DetachOptions, signal: AbortSignal): Promise<void> {
  if (await dataplane.detach({ attachment, netns, hostInterfaceName: hostInterfaceName(attachment) }, signal)) return;
  const links = await dataplane.list();
  const name = formatAttachment(attachment);
  for (const { attachment: other, link } of links) {
    if (formatAttachment(other) !== name) continue;
    await dataplane.detach({ attachment, hostInterfaceName: link.name }, signal);
  }
}

/** Calico's contract for external dataplanes. */
export function cniService(parts: CniDependencies, unary: Unary): RpcService {
  return unaryService(CniDataplaneService, unary, { add: cniAdd(parts), del: cniDel(parts) });
}

/** How long Calico's plugin waits for a call. */
export const CNI_TIMEOUT_MS = 5000;

/**
 * Limits the work of a call of Calico's contract to the plugin's timeout when the caller's deadline is later: a wire created
 * after the timeout would be an orphan.
 * @throws any error of the work, which must observe its signal
 */
export async function withTimeout<Answer>(
  signal: AbortSignal,
  work: (signal: AbortSignal) => Promise<Answer>,
  timeoutMs = CNI_TIMEOUT_MS,
): Promise<Answer> {
  const limit = new AbortController();
  const onTimeout = () => limit.abort(new Failure('DEADLINE_EXCEEDED', `no answer within ${timeoutMs} ms`));
  const timer = setTimeout(onTimeout, timeoutMs);
  try {
    return await work(AbortSignal.any([signal, limit.signal]));
  } finally {
    clearTimeout(timer);
  }
}
