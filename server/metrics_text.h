// Metric families made at the moment of a scrape. Part of metrics.cc.
#pragma once

#include <vector>

#include "prometheus/metric_family.h"
#include "server/metrics.h"

namespace nibble::server {

// Gauges, infos and the counters that the scheduler keeps itself.
void AppendGauges(const ServerGauges& gauges,
                  std::vector<prometheus::MetricFamily>& families);

// A copy of each family that vLLM has, under its name.
void AppendVllmNames(std::vector<prometheus::MetricFamily>& families);

}  // namespace nibble::server
