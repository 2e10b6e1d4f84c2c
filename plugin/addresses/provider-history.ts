import { mkdir, readFile } from 'node:fs/promises';
import { dirname } from 'node:path';

import type { Attachment } from '@podwire/shared/attachment/attachment';
import { codeOf, messageOf } from '@podwire/shared/failure/thrown';
import { putDurably } from '@podwire/shared/runtime/durable-file';
import type { Logger } from '@podwire/shared/runtime/log';
import { z } from 'zod';

import { findProgram } from './ipam-plugin.js';
import type { Delegate } from './mode.js';

/** Another IPAM plugin that gave addresses in a network: what its DEL needs, beside the pod. */
const FORMER_DELEGATE = z.strictObject({ type: z.string(), cniPath: z.string(), configuration: z.string() });

type FormerDelegate = z.infer<typeof FORMER_DELEGATE>;

const NETWORK = z.strictObject({
  /** Identity of the boot in which podwire-ipam gave an address last; null where it never did. */
  ipamBootId: z.string().nullable(),
  delegates: z.array(FORMER_DELEGATE),
});

type Network = z.infer<typeof NETWORK>;

/** The file: JSON. */
const STORED = z.strictObject({ version: z.literal(1), networks: z.record(z.string(), NETWORK) });

const DIRECTORY_MODE = 0o700;

/** As many networks and IPAM plugins of one as are remembered; the oldest go first. */
const MAX_NETWORKS_COUNT = 256;
const MAX_DELEGATES_COUNT = 8;

/** Keys of a configuration that are one pod's; without them it is the same for all pods of the network. */
const KEYS_OF_A_POD: readonly string[] = ['runtimeConfig', 'prevResult', 'args'];

/** Who besides those of today's configuration may hold an attachment's addresses. */
interface FormerGivers {
  readonly isIpam: boolean;
  readonly delegates: readonly Delegate[];
}

const NO_FORMER_GIVERS: FormerGivers = { isIpam: false, delegates: [] };

interface GiversOptions {
  /** Absolute path of the file; its directory is made where it is missing. */
  readonly path: string;
  /** Identity of this boot. */
  readonly bootId: string;
  readonly log: Logger;
}

/**
 * Who gave addresses to the pods of each network on this node: podwire-ipam, or the other IPAM plugins that its configuration named. DEL has
 * the configuration of today, and a process that did not see the ADD has nothing else to go by; so it asks all who ever gave any.
 *
 * Written once for each of them, not once for each pod: giving back what is not held succeeds everywhere. What podwire-ipam gave in an
 * earlier boot the dataplane gives back. A file that cannot be written fails no ADD: what it is for is rare.
 */
export class Givers {
  readonly #options: GiversOptions;
  #networks = new Map<string, Network>();
  #isStored = true;
  #storing: Promise<void> = Promise.resolve();
  /** The last fault that was logged. */
  #told: string | undefined;

  constructor(options: GiversOptions) {
    this.#options = options;
  }

  /** Reads the history of earlier processes. An unreadable file is logged and counts as empty. */
  async load(): Promise<void> {
    const { path, log } = this.#options;
    try {
      const { networks } = STORED.parse(JSON.parse(await readFile(path, 'utf8')));
      this.#networks = new Map([...Object.entries(networks), ...this.#networks]);
    } catch (error) {
      if (codeOf(error) === 'ENOENT') return;
      log.warn(
        { err: error, path },
        `${path} cannot be read: pods whose ipam.type was changed keep their addresses until GC`,
      );
    }
  }

  /**
   * Records the provider of a network's addresses; persisted before the provider allocates any.
   * @param delegate - undefined for podwire-ipam
   */
  async note(network: string, delegate: Delegate | undefined): Promise<void> {
    const known = this.#networks.get(network) ?? { ipamBootId: null, delegates: [] };
    const next = delegate ? withDelegate(known, delegate) : this.#withIpam(known);
    if (next !== known) {
      this.#networks.delete(network);
      this.#networks.set(network, next);
      const [oldest] = this.#networks.keys();
      if (this.#networks.size > MAX_NETWORKS_COUNT && oldest !== undefined) this.#networks.delete(oldest);
      this.#isStored = false;
    }
    if (!this.#isStored) this.#storing = this.#storing.then(() => this.#store());
    // Also where another one's is being written that says the same.
    await this.#storing;
  }

  /**
   * Earlier providers of the attachment's network, without the current one.
   * @param current - the configured provider: undefined for podwire-ipam
   */
  formerOf(attachment: Attachment, current: Delegate | undefined): FormerGivers {
    const known = this.#networks.get(attachment.network);
    if (!known) return NO_FORMER_GIVERS;
    const others = known.delegates.filter(({ type }) => type !== current?.type);
    return {
      isIpam: current !== undefined && this.wasIpam(attachment.network),
      delegates: others.flatMap((former) => this.#delegateOf(former, attachment)),
    };
  }

  /** Whether podwire-ipam gave addresses of a network in this boot. */
  wasIpam(network: string): boolean {
    return this.#networks.get(network)?.ipamBootId === this.#options.bootId;
  }

  #withIpam(known: Network): Network {
    const { bootId } = this.#options;
    return known.ipamBootId === bootId ? known : { ...known, ipamBootId: bootId };
  }

  /** None for a program that is not there any more: what it held went with it, and a DEL cannot wait for it. */
  #delegateOf({ type, cniPath, configuration }: FormerDelegate, attachment: Attachment): Delegate[] {
    if (findProgram(type, cniPath) === undefined) {
      this.#tell(
        `IPAM plugin ${type} gave addresses in network ${attachment.network}, and is in none of ${cniPath} any more: what it holds stays`,
      );
      return [];
    }
    const { containerId, interfaceName } = attachment;
    const variables = { CNI_CONTAINERID: containerId, CNI_IFNAME: interfaceName, CNI_PATH: cniPath };
    return [{ type, configuration, variables }];
  }

  async #store(): Promise<void> {
    if (this.#isStored) return;
    const { path } = this.#options;
    this.#isStored = true;
    try {
      await mkdir(dirname(path), { recursive: true, mode: DIRECTORY_MODE });
      const networks = Object.fromEntries(this.#networks);
      await putDurably(path, `${JSON.stringify({ version: 1, networks })}\n`);
    } catch (error) {
      this.#isStored = false;
      const reason = messageOf(error);
      this.#tell(`${path} cannot be written: ${reason}; a change of ipam.type would leave addresses to GC`);
    }
  }

  #tell(fault: string): void {
    if (fault === this.#told) return;
    this.#told = fault;
    this.#options.log.warn(fault);
  }
}

function withDelegate(known: Network, { type, variables, configuration }: Delegate): Network {
  const former = { type, cniPath: variables.CNI_PATH ?? '', configuration: ofNetwork(configuration) };
  const isKnown = known.delegates.some(
    (each) => each.type === type && each.cniPath === former.cniPath && each.configuration === former.configuration,
  );
  if (isKnown) return known;
  const others = known.delegates.filter((each) => each.type !== type);
  return { ...known, delegates: [...others, former].slice(-MAX_DELEGATES_COUNT) };
}

/** A configuration without what is one pod's. */
function ofNetwork(configuration: string): string {
  const keys = z.record(z.string(), z.unknown()).parse(JSON.parse(configuration));
  const own = Object.entries(keys).filter(([key]) => !KEYS_OF_A_POD.includes(key) && !key.startsWith('cni.dev/'));
  return JSON.stringify(Object.fromEntries(own));
}
