import { describe, expect, test } from 'vitest';

import { matchingObservation, BY_FAMILY, podNetwork } from '../testing/pods.js';
import { wantedState } from './network.js';
import type { ObservedRoute } from './observed.js';
import { withFreeMetrics } from './source-routing.js';
import { formatRoute } from './step.js';

const dual = podNetwork('a', BY_FAMILY['both families']);
const attachment = { ...dual.attachment, interfaceName: 'net1' };
const second = podNetwork('a', { ...BY_FAMILY['both families'], attachment, hostInterfaceName: 'podwsecond' });
const wanted = wantedState(second);

/** The routes of an interface of the pod. */
const routesOf = (device: string, above = 0): ObservedRoute[] =>
  matchingObservation(dual).pod.routes.map((route) => ({ ...route, device, metric: route.metric + above }));

const routesWith = (podRoutes: readonly ObservedRoute[]): string[] =>
  withFreeMetrics(wanted, podRoutes).pod.routes.map(formatRoute);

describe('the routes of an interface', () => {
  test('have the best metric when no other interface has them', () => {
    expect(routesWith([])).toEqual([
      '169.254.1.1 dev net1 proto 87 scope link',
      'default via 169.254.1.1 dev net1 proto 87',
      'default via fe80::ecee:eeff:feee:eeee dev net1 proto 87 metric 1024',
    ]);
  });

  test('have the next metric when another interface has them', () => {
    expect(routesWith(routesOf('eth0'))).toEqual([
      '169.254.1.1 dev net1 proto 87 scope link metric 1',
      'default via 169.254.1.1 dev net1 proto 87 metric 1',
      'default via fe80::ecee:eeff:feee:eeee dev net1 proto 87 metric 1025',
    ]);
  });

  test('have the first free metric, also between used ones', () => {
    const otherRoutes = [...routesOf('eth0'), ...routesOf('net2', 2), ...routesOf('net3', 3)];
    expect(routesWith(otherRoutes)[1]).toBe('default via 169.254.1.1 dev net1 proto 87 metric 1');
    expect(routesWith([...otherRoutes, ...routesOf('net4', 1)])[1]).toBe(
      'default via 169.254.1.1 dev net1 proto 87 metric 4',
    );
  });

  test('keep their metrics when the other interface is detached', () => {
    expect(routesWith(routesOf('net1', 1))[1]).toBe('default via 169.254.1.1 dev net1 proto 87 metric 1');
  });

  test('do not keep a metric outside the range of attachments', () => {
    expect(routesWith(routesOf('net1', 64))[1]).toBe('default via 169.254.1.1 dev net1 proto 87');
  });
});
