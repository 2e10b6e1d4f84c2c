import { absolutePath, rpcAddress } from '@podwire/shared/runtime/setting';
import type { z } from 'zod';

import type { OutputFormat } from '../output/report.js';
import { durationMs, oneOf, type Form } from './forms.js';
import type { Flag, Option } from './verb.js';

/** Where a service is found: by an option, else by an environment variable, else at its usual place. */
export interface Place extends Option<string> {
  /** The variable by which Podwire's own processes find the service. */
  readonly variable: string;
  readonly usual: string;
}

function written(placeholder: string, schema: z.ZodType<string, string>): Form<string> {
  return {
    placeholder,
    read: (given) => {
      const parsed = schema.safeParse(given);
      if (parsed.success) return { ok: true, value: parsed.data };
      return { ok: false, fault: parsed.error.issues.map(({ message }) => message).join(', ') };
    },
  };
}

function place(name: string, rest: Pick<Place, 'form' | 'variable' | 'usual'> & { readonly what: string }): Place {
  const { what, ...own } = rest;
  return { name, ...own, about: `where ${what} is found (${rest.variable}; ${rest.usual})` };
}

const RPC = written('unix:PATH|HOST:PORT', rpcAddress);

export const IPAM = place('--ipam', {
  what: 'podwire-ipam',
  form: RPC,
  variable: 'PODWIRE_PLUGIN_IPAM_ADDRESS',
  usual: 'unix:/run/podwire/ipam.sock',
});

export const DATAPLANE = place('--dataplane', {
  what: "the node's podwire-dataplane",
  form: RPC,
  variable: 'PODWIRE_PLUGIN_DATAPLANE_ADDRESS',
  usual: 'unix:/run/podwire/dataplane.sock',
});

export const PLUGIN = place('--plugin', {
  what: "the node's podwire-plugin",
  form: written('PATH', absolutePath),
  variable: 'PODWIRE_PLUGIN_SOCKET',
  usual: '/run/podwire/cni.sock',
});

export const OUTPUT: Option<OutputFormat> = {
  name: '--output',
  form: oneOf<OutputFormat>({ table: 'table', yaml: 'yaml', json: 'json' }),
  about:
    "form of what is printed, -o for short (table); yaml and json are the contract's messages in protobuf's JSON form",
};

export const TIMEOUT: Option<number> = {
  name: '--timeout',
  // No timer of Node.js waits for longer than 24 days.
  form: durationMs(1),
  about: 'time for the whole command, up to 1d (10s)',
};

export const USUAL_TIMEOUT_MS = 10_000;

export const HELP: Flag = { name: '--help', about: 'what a command does and takes, -h for short' };
export const VERSION: Flag = { name: '--version', about: 'the release of podwirectl' };

export const GLOBAL_OPTIONS: readonly Option<unknown>[] = [IPAM, DATAPLANE, PLUGIN, OUTPUT, TIMEOUT];
export const GLOBAL_FLAGS: readonly Flag[] = [HELP, VERSION];
