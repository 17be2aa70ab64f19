// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The one place that states the version; meson.build reads it from here.
#pragma once

#define ROTOSCALE_VERSION_MAJOR 0
#define ROTOSCALE_VERSION_MINOR 1
#define ROTOSCALE_VERSION_PATCH 0
#define ROTOSCALE_VERSION "0.1.0"
