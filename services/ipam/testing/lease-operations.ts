import fc from 'fast-check';

/** Random operations of nodes on leases: see `leases/leases.property.test.ts`. */

const nodes = fc.constantFrom('n1', 'n2', 'n3');
const ids = fc.constantFrom('c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7', 'c8');
/** One of the current holders, or of all allocations that ever were, the latest first. */
const which = fc.oneof(
  { weight: 3, arbitrary: fc.record({ among: fc.constant('held' as const), index: fc.nat(31) }) },
  { weight: 1, arbitrary: fc.record({ among: fc.constant('known' as const), index: fc.nat(40) }) },
);
export type Which = typeof which extends fc.Arbitrary<infer Value> ? Value : never;
export const operation = fc.oneof(
  {
    weight: 5,
    arbitrary: fc.record({ type: fc.constant('lease' as const), node: nodes, count: fc.integer({ min: 0, max: 5 }) }),
  },
  {
    weight: 6,
    arbitrary: fc.record({ type: fc.constant('bind' as const), which, id: ids, as: fc.option(nodes, { freq: 3 }) }),
  },
  {
    weight: 4,
    arbitrary: fc.record({
      type: fc.constant('return' as const),
      wanted: fc.uniqueArray(fc.record({ which, id: fc.option(ids), isKept: fc.boolean() }), {
        maxLength: 4,
        selector: (each) => each.which,
      }),
      node: fc.option(nodes),
    }),
  },
  { weight: 5, arbitrary: fc.record({ type: fc.constant('allocate' as const), id: ids, node: nodes }) },
  { weight: 4, arbitrary: fc.record({ type: fc.constant('burst' as const), node: nodes }) },
  { weight: 3, arbitrary: fc.record({ type: fc.constant('release' as const), id: ids }) },
  fc.record({ type: fc.constant('end burst' as const) }),
  { weight: 2, arbitrary: fc.record({ type: fc.constant('recall' as const) }) },
  fc.record({ type: fc.constant('open' as const), node: nodes, by: fc.constantFrom('process', 'boot', 'twin') }),
  fc.record({ type: fc.constant('late call' as const), node: nodes, index: fc.nat(5) }),
  { weight: 2, arbitrary: fc.record({ type: fc.constant('foreign release' as const), node: nodes, index: fc.nat(3) }) },
  { weight: 2, arbitrary: fc.record({ type: fc.constant('report' as const), node: nodes }) },
  fc.record({ type: fc.constant('backup' as const) }),
  fc.record({
    type: fc.constant('restore' as const),
    order: fc.shuffledSubarray(['n1', 'n2', 'n3'], { minLength: 3 }),
  }),
  fc.record({ type: fc.constant('end node' as const), node: nodes }),
  fc.record({ type: fc.constant('collect' as const) }),
  { weight: 2, arbitrary: fc.record({ type: fc.constant('wait' as const), seconds: fc.constantFrom(1, 29, 31, 300) }) },
  fc.record({ type: fc.constant('set clocks' as const), aheadSeconds: fc.constantFrom(-3600, -2, 0, 2, 3600) }),
);
export type Operation = typeof operation extends fc.Arbitrary<infer Value> ? Value : never;

export interface Return {
  readonly which: Which;
  readonly id: string | null;
  readonly isKept: boolean;
}
