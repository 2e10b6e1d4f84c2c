import { DryRunServiceService } from '@podwire/proto/podwire/ipam/v1/dry_run';

import type { Context, Service } from './services.js';

/** The context in which podwire-ipam decides each call, and stores nothing. */
export function dryRunOf(context: Context): Context {
  const { ipam } = context;
  const call: Service['call'] = async ({ path, requestSerialize, responseDeserialize }, request) => {
    const dryRun = { path, request: requestSerialize(request) };
    return responseDeserialize((await ipam.call(DryRunServiceService.dryRun, dryRun)).response);
  };
  return { ...context, ipam: { address: ipam.address, call, stream: (...args) => ipam.stream(...args) } };
}
