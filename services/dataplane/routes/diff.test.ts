import { describe, expect, it } from 'vitest';

import { diffRoutes } from './diff.js';
import { NodeStateCache } from './node-state-cache.js';
import type { NodeRoute } from './wanted.js';

/** Routes by a device that is up, in the order of their destinations. */
function routesBy(gateways: readonly string[]): Map<string, NodeRoute> {
  return new Map(
    gateways.map((gateway, position): [string, NodeRoute] => {
      const destination = `10.65.${position}.0/26`;
      return [destination, { destination, type: 'unicast', device: 'up0', gateway, onlink: true, source: undefined }];
    }),
  );
}

describe('added routes', () => {
  it('are grouped by gateway, as Linux finds the previous route’s gateway at once', () => {
    const routes = routesBy(['198.18.0.2', '198.18.0.3', '198.18.0.2', '198.18.0.4', '198.18.0.3']);
    const device = { name: 'up0', kind: null, up: true, mac: null, mtuBytes: 1500, tunnel: undefined };
    const nothing = { addresses: [], routes: [], routed: [], neighbours: [], forwarding: [], sysctls: new Map() };
    const known = new NodeStateCache({ ...nothing, devices: new Map([['up0', device]]) }, routes);
    const wanted = { tunnels: [], routes, peers: [], sysctls: [], conditions: [] };
    const { set } = diffRoutes(routes.keys(), wanted, known);
    expect(set.map((step) => ('route' in step ? step.route.destination : step.type))).toEqual([
      '10.65.0.0/26',
      '10.65.2.0/26',
      '10.65.1.0/26',
      '10.65.4.0/26',
      '10.65.3.0/26',
    ]);
  });
});
