import { RequestPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/request_policy';

import { allPages } from '../clients/pages.js';
import type { Verb } from '../command-line/verb.js';
import { age } from '../output/words.js';
import { namespacesOf, rulesOf } from '../resources/policies.js';

export const policiesList: Verb = {
  name: 'policies list',
  about: 'what the authors of pods may ask for, and in which namespaces',
  details: 'What no policy about a namespace has a rule for is free there; of several with a rule one has to allow it.',
  run: async (_, { ipam, json, clock }) => {
    const pages = await allPages((page) => ipam.call(RequestPolicyServiceService.listRequestPolicies, page));
    const requestPolicies = pages.flatMap((page) => page.requestPolicies);
    const nowMs = clock.nowMs();
    return {
      sections: [
        {
          kind: 'table',
          columns: ['NAME', 'NAMESPACES', 'ALLOWS', 'AGE'],
          rows: requestPolicies.map((policy) => [
            policy.name,
            namespacesOf(policy),
            rulesOf(policy)
              .map(([kind, allowed]) => `${kind.toLowerCase()}: ${allowed}`)
              .join('; '),
            age(policy.createTime, nowMs),
          ]),
          none: 'There is no request policy: every request is allowed.',
        },
      ],
      data: () => json.of(RequestPolicyServiceService.listRequestPolicies, { requestPolicies, nextPageToken: '' }),
    };
  },
};
